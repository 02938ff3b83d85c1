//! A model as a directory holds it: recipe, values and tokenizer.

use std::collections::HashSet;
use std::path::Path;

use tensor::{DType, Kernels, Tensor};

use crate::batch::Batch;
use crate::config::{ConfigError, Family, Head, ModelConfig};
use crate::encoder::{Encoder, Pooling};
use crate::files::{self, Checkpoint, FileError, ModelDir, SaveDType, TensorRef, atomic};
use crate::inference::InferenceDtype;
use crate::params::{FilePart, ParamDescr, Weights, initialise};
use crate::tape::{Pass, Tape};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// An encoder with its values, and the tokenizer it was trained with.
pub struct Model {
    /// Which parameter goes where.
    pub encoder: Encoder,
    /// The values.
    pub weights: Weights,
    /// From text to token ids.
    pub tokenizer: Tokenizer,
}

/// What loading may do about a head that the file does not hold.
#[derive(Clone, Debug)]
pub enum LoadMode {
    /// The model as it is: anything missing is an error.
    AsIs,
    /// The same, to evaluate or predict: every tensor is arranged for inference in this type as soon as it is read, and
    /// cannot be trained or saved.
    Inference(InferenceDtype),
    /// To fine-tune for this head and these labels: what the file lacks of the head is initialised from the seed.
    FineTune {
        /// The head to train.
        head: Head,
        /// Names of its outputs.
        labels: Vec<String>,
        /// For the initial values.
        seed: u64,
    },
}

/// What a weights file and a model did not agree on, for a notice.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LoadReport {
    /// Tensors that the file lacks and that were initialised.
    pub missing: Vec<String>,
    /// Tensors of another shape, initialised instead, with both shapes.
    pub reinitialised: Vec<String>,
    /// Tensors of the file that the model has no use for.
    pub unexpected: Vec<String>,
}

/// Why a model could not be loaded or saved.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// `config.json` cannot be used.
    #[error("{path}: {cause}")]
    Config {
        /// The directory.
        path: String,
        /// What is wrong.
        cause: ConfigError,
    },
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The weights lack tensors that the configuration asks for.
    #[error("{path}: the weights lack tensors that config.json asks for ({count}, the first is `{first}`){advice}")]
    Missing {
        /// The directory.
        path: String,
        /// How many.
        count: usize,
        /// The first of them.
        first: String,
        /// What to do.
        advice: &'static str,
    },
    /// A tensor and the configuration disagree.
    #[error(
        "{path}: tensor `{name}` has shape {found:?} where config.json asks for {expected:?}: the two files are of different models"
    )]
    Shape {
        /// The directory.
        path: String,
        /// The tensor.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// By the configuration.
        expected: Vec<usize>,
    },
    /// Embeddings are made in a way that is not supported.
    #[error("{path}: {problem}; supported are the mean and the first token, normalised or not")]
    Pooling {
        /// The directory.
        path: String,
        /// What it asks for.
        problem: String,
    },
    /// The tokenizer can produce ids that the model has no embedding for.
    #[error(
        "{path}: the tokenizer has {tokens} tokens but the model only {rows} embeddings: they do not belong together"
    )]
    Vocabulary {
        /// The directory.
        path: String,
        /// Size of the tokenizer's vocabulary.
        tokens: usize,
        /// `vocab_size` of the configuration.
        rows: usize,
    },
}

impl Model {
    /// Loads a model directory onto a device.
    pub fn load(dir: &ModelDir, mode: &LoadMode, kernels: &dyn Kernels) -> Result<(Self, LoadReport), ModelError> {
        let path = dir.path();
        let shown = path.display().to_string();
        let config =
            ModelConfig::parse(dir.config_text()).map_err(|cause| ModelError::Config { path: shown.clone(), cause })?;
        let config = match mode {
            LoadMode::AsIs | LoadMode::Inference(_) => config,
            LoadMode::FineTune { head, labels, .. } => config.with_head(*head, labels.clone()),
        };
        let tokenizer = Tokenizer::open(path)?;
        let (tokens, rows) = (tokenizer.vocab_size(), config.encoder.vocab_size);
        if tokens > rows {
            return Err(ModelError::Vocabulary { path: shown, tokens, rows });
        }
        let mut encoder = Encoder::new(config);
        if encoder.config().head == Head::Embedding {
            (encoder.pooling, encoder.normalize) = sentence_embedding(path)?;
        }
        let (seed, dtype) = match mode {
            LoadMode::AsIs => (None, None),
            LoadMode::Inference(dtype) => (None, Some(*dtype)),
            LoadMode::FineTune { seed, .. } => (Some(*seed), None),
        };
        let checkpoint = Checkpoint::open(path)?;
        let (weights, report) = Loader::new(&encoder, &checkpoint, shown, seed).load(kernels, dtype)?;
        Ok((Self { encoder, weights, tokenizer }, report))
    }

    /// Writes a directory that [`Model::load`] and transformers open. The weights go last.
    pub fn save(&self, dir: &Path) -> Result<(), ModelError> {
        std::fs::create_dir_all(dir).map_err(|cause| FileError::Io { action: "create", path: dir.into(), cause })?;
        let config = self.encoder.config().to_json();
        atomic::write(&dir.join("config.json"), |file| std::io::Write::write_all(file, config.as_bytes()))?;
        self.tokenizer.save(dir, self.encoder.config().encoder.max_tokens())?;
        save_weights(&self.encoder, &self.weights, &dir.join("model.safetensors"))
    }

    /// Logits or embeddings of a batch, without recording anything; `dtype` is that of activations
    /// ([`InferenceDtype::activations`]).
    pub fn infer(&self, kernels: &dyn Kernels, batch: &Batch, dtype: DType) -> Tensor {
        let pass = Pass { kernels, weights: &self.weights, batch, dtype, randomness: None };
        self.encoder.forward(&mut Tape::inference(pass)).tensor
    }
}

/// Reads the values of an encoder from a model directory. With a `seed`, what the file lacks of the head is initialised.
pub fn load_weights(
    encoder: &Encoder,
    dir: &Path,
    seed: Option<u64>,
    kernels: &dyn Kernels,
) -> Result<(Weights, LoadReport), ModelError> {
    let checkpoint = Checkpoint::open(dir)?;
    Loader::new(encoder, &checkpoint, dir.display().to_string(), seed).load(kernels, None)
}

/// Where a weights file and a configuration disagree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsComparison {
    /// Tensors that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of another shape, with both.
    pub mismatched: Vec<String>,
    /// Tensors that the model has no use for.
    pub unused: Vec<String>,
}

/// Compares names and shapes without reading a value.
pub fn compare_weights(encoder: &Encoder, checkpoint: &Checkpoint) -> WeightsComparison {
    // Every descriptor counts as a head's here: what is wrong is listed instead of refused.
    let mut loader = Loader::new(encoder, checkpoint, String::new(), Some(0));
    for descriptor in encoder.descriptors() {
        loader.note_parts(descriptor);
    }
    let unused = loader.unused();
    WeightsComparison { missing: loader.report.missing, mismatched: loader.report.reinitialised, unused }
}

/// Writes the master weights under their Hugging Face names.
pub fn save_weights(encoder: &Encoder, weights: &Weights, path: &Path) -> Result<(), ModelError> {
    let mut tensors = Vec::new();
    for id in weights.ids() {
        let descriptor = weights.descriptor(id);
        for part in &descriptor.parts {
            let row = descriptor.row_len();
            let data = &weights.master(id).as_slice::<f32>()[part.rows.start * row..part.rows.end * row];
            tensors.push((written_name(encoder, part), part_shape(descriptor, part), data));
        }
    }
    let tensors: Vec<TensorRef> = tensors.iter().map(|(name, shape, data)| TensorRef { name, shape, data }).collect();
    Ok(files::write_safetensors(path, &tensors, SaveDType::F32, &[])?)
}

/// Names in a file that are buffers of old versions, not parameters.
fn is_buffer(name: &str) -> bool {
    name.ends_with("embeddings.position_ids") || name.ends_with("embeddings.token_type_ids")
}

fn part_shape(descriptor: &ParamDescr, part: &FilePart) -> Vec<usize> {
    std::iter::once(part.rows.len()).chain(descriptor.shape[1..].iter().copied()).collect()
}

fn written_name(encoder: &Encoder, part: &FilePart) -> String {
    let bare = part.root || encoder.config().head == Head::Embedding;
    if bare { part.name.clone() } else { format!("{}{}", encoder.file_prefix(), part.name) }
}

struct Loader<'a> {
    encoder: &'a Encoder,
    checkpoint: &'a Checkpoint,
    path: String,
    /// Present when what is missing of the head may be initialised.
    seed: Option<u64>,
    used: HashSet<String>,
    report: LoadReport,
}

struct Mismatch {
    name: String,
    found: Vec<usize>,
    expected: Vec<usize>,
}

impl<'a> Loader<'a> {
    fn new(encoder: &'a Encoder, checkpoint: &'a Checkpoint, path: String, seed: Option<u64>) -> Self {
        Self { encoder, checkpoint, path, seed, used: HashSet::new(), report: LoadReport::default() }
    }

    /// With a `dtype`, for inference only.
    fn load(
        mut self,
        kernels: &dyn Kernels,
        dtype: Option<InferenceDtype>,
    ) -> Result<(Weights, LoadReport), ModelError> {
        self.refuse_missing()?;
        let encoder = self.encoder;
        let linear = encoder.packable();
        let arrange = |id, descriptor: &ParamDescr, tensor| match dtype {
            Some(dtype) => dtype.arrange(kernels, descriptor, linear.contains(&id), tensor),
            None => tensor,
        };
        let fill = |id, descriptor: &ParamDescr, tensor: &mut Tensor| {
            if !self.is_present(descriptor)? {
                initialise(id, descriptor, self.seed.unwrap_or(0), tensor);
                return Ok::<(), ModelError>(());
            }
            self.read(descriptor, tensor)
        };
        let weights = Weights::build_as(encoder.descriptors(), kernels, fill, arrange)?;
        if dtype.is_some() {
            kernels.pool().release_idle();
        }
        self.report.unexpected = self.unused();
        Ok((weights, self.report))
    }

    /// All that is missing is told at once, before anything is read.
    fn refuse_missing(&self) -> Result<(), ModelError> {
        let required = self.encoder.descriptors().iter().filter(|d| self.seed.is_none() || !d.is_head());
        let missing: Vec<(String, bool)> = required
            .flat_map(|d| d.parts.iter().map(move |part| (part, d.is_head())))
            .filter(|(part, _)| self.find(part).is_none())
            .map(|(part, head)| (written_name(self.encoder, part), head))
            .collect();
        let Some((first, _)) = missing.first() else { return Ok(()) };
        let advice = if missing.iter().all(|(_, head)| *head) {
            ": this model has no trained head; fine-tune it first with `trainyard train`"
        } else {
            ""
        };
        Err(ModelError::Missing { path: self.path.clone(), count: missing.len(), first: first.clone(), advice })
    }

    /// The name under which the file holds a part: with or without the family's prefix, by its new or its old name.
    fn find(&self, part: &FilePart) -> Option<String> {
        let name = &part.name;
        let prefixed = format!("{}{name}", self.encoder.file_prefix());
        let spellings = if part.root { vec![name.clone()] } else { vec![prefixed, name.clone()] };
        let old = |name: &String| {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        };
        let candidates = spellings.iter().cloned().chain(spellings.iter().map(old));
        candidates.into_iter().find(|candidate| self.checkpoint.info(candidate).is_some())
    }

    /// Whether every part is there in its shape. What the head lacks is noted, what the encoder lacks is an error.
    fn is_present(&mut self, descriptor: &ParamDescr) -> Result<bool, ModelError> {
        let mismatch = self.note_parts(descriptor);
        match mismatch {
            Some(Mismatch { name, found, expected }) if self.seed.is_none() || !descriptor.is_head() => {
                Err(ModelError::Shape { path: self.path.clone(), name, found, expected })
            }
            mismatch => Ok(mismatch.is_none() && descriptor.parts.iter().all(|part| self.find(part).is_some())),
        }
    }

    /// Notes the parts that are missing or of another shape; returns the first of the latter.
    fn note_parts(&mut self, descriptor: &ParamDescr) -> Option<Mismatch> {
        let mut first = None;
        for part in &descriptor.parts {
            let expected = part_shape(descriptor, part);
            let Some(name) = self.find(part) else {
                self.report.missing.push(written_name(self.encoder, part));
                continue;
            };
            let found = self.checkpoint.info(&name).map(|info| info.shape.clone()).unwrap_or_default();
            self.used.insert(name.clone());
            if found != expected {
                self.report.reinitialised.push(format!("{name} ({found:?} in the file, {expected:?} needed)"));
                first.get_or_insert(Mismatch { name, found, expected });
            }
        }
        first
    }

    /// Tensors of the file that nothing asked for. A bare encoder is not blamed for the pooler it does without.
    fn unused(&self) -> Vec<String> {
        let bare = self.encoder.config().head == Head::Embedding;
        let expected = |name: &str| is_buffer(name) || (bare && name.contains("pooler.dense."));
        let names = self.checkpoint.names().filter(|name| !self.used.contains(*name) && !expected(name));
        names.map(String::from).collect()
    }

    fn read(&self, descriptor: &ParamDescr, tensor: &mut Tensor) -> Result<(), ModelError> {
        let row = descriptor.row_len();
        if tensor.dtype() == DType::F32 {
            return self.read_parts(descriptor, row, tensor.as_mut_slice::<f32>());
        }
        let mut values = vec![0.0; descriptor.len()];
        self.read_parts(descriptor, row, &mut values)?;
        tensor.copy_from_f32(&values);
        Ok(())
    }

    fn read_parts(&self, descriptor: &ParamDescr, row: usize, values: &mut [f32]) -> Result<(), ModelError> {
        for part in &descriptor.parts {
            if let Some(name) = self.find(part) {
                self.checkpoint.read_f32(&name, &mut values[part.rows.start * row..part.rows.end * row])?;
            }
        }
        Ok(())
    }
}

/// How a sentence-transformers directory says that embeddings are made; the mean, normalised, where it does not say.
fn sentence_embedding(dir: &Path) -> Result<(Pooling, bool), ModelError> {
    let json = |name: &'static str| -> Result<Option<serde_json::Value>, ModelError> {
        let path = dir.join(name);
        if !path.exists() {
            return Ok(None);
        }
        let text = files::read_text(&path, MAX_POOLING_FILE)?;
        let damaged = |e: serde_json::Error| pooling_error(dir, format!("{name} is not JSON: {e}"));
        serde_json::from_str(&text).map(Some).map_err(damaged)
    };
    let modes = json("1_Pooling/config.json")?.unwrap_or_default();
    let wants =
        |mode: &str| modes.get(format!("pooling_mode_{mode}")).and_then(serde_json::Value::as_bool) == Some(true);
    let pooling = match (wants("cls_token"), wants("mean_tokens")) {
        (true, false) => Pooling::Cls,
        (false, true) => Pooling::Mean,
        (false, false) if modes.is_null() => Pooling::Mean,
        _ => return Err(pooling_error(dir, "1_Pooling/config.json asks for neither mean nor CLS alone".into())),
    };
    let modules = json("modules.json")?.map(|modules| modules.to_string());
    if modules.as_ref().is_some_and(|modules| modules.contains("models.Dense")) {
        return Err(pooling_error(dir, "modules.json has a Dense module after the pooling".into()));
    }
    Ok((pooling, modules.is_none_or(|modules| modules.contains("Normalize"))))
}

const MAX_POOLING_FILE: u64 = 1 << 20;

fn pooling_error(dir: &Path, problem: String) -> ModelError {
    ModelError::Pooling { path: dir.display().to_string(), problem }
}

/// The usual name of a family, for people.
impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Family::Bert => "BERT",
            Family::Roberta => "RoBERTa",
            Family::DistilBert => "DistilBERT",
        })
    }
}
