//! One reference on disk: a tiny model, its batches, and what PyTorch makes of them.

use std::path::{Path, PathBuf};

use model::config::{Head, Problem};
use model::files::safetensors::Header;
use model::{
    Batch, Encoder, Gradients, Loss, Model, ModelConfig, Pass, Pooling, Sequence, Tape, Targets, load_weights,
};
use serde::Deserialize;
use serde_json::Value;
use tensor::{Kernels, Tensor};
use train::Prepared;

/// Where references lie, and what they ask of gradients that are exactly zero.
#[derive(Clone, Copy)]
pub enum Source {
    /// `../shared/parity`, where it is there.
    Shared,
    /// `crates/model/tests/references`, made by `bench/reference/make_references.py`.
    Own,
}

impl Source {
    fn dir(self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join(match self {
            Self::Shared => "../../../shared/parity",
            Self::Own => "../model/tests/references",
        })
    }

    /// The absolute bound on key biases, whose exact gradient is zero: each README states its own.
    pub fn zero_bound(self) -> f64 {
        match self {
            Self::Shared => 1e-7,
            Self::Own => 1e-6,
        }
    }
}

/// `expected.json`; `bench/reference/README.md` explains the fields.
#[derive(Deserialize)]
pub struct Expected {
    pub batches: Vec<ExpectedBatch>,
    #[serde(alias = "embeddings")]
    pub logits: Value,
    pub logits_with_exact_gelu: Option<Value>,
    pub loss: f64,
    pub grad_norm: f64,
    pub adamw: Option<ExpectedAdamw>,
    pub class_weights: Option<Vec<f32>>,
    pub label_smoothing: Option<f32>,
    pub pooling: Option<String>,
    #[serde(default = "uneven_cut")]
    pub micro_batches: Vec<usize>,
}

#[derive(Deserialize)]
pub struct ExpectedBatch {
    pub input_ids: Vec<Vec<u32>>,
    #[serde(alias = "directions")]
    pub labels: Vec<Value>,
}

#[derive(Deserialize)]
pub struct ExpectedAdamw {
    pub lr: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    pub clip_norm: f64,
    pub loss_and_grad_norm: Vec<(f64, f64)>,
}

fn uneven_cut() -> Vec<usize> {
    vec![1, 3, 2]
}

/// The numbers of nested lists, in their order.
pub fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        other => other.as_f64().into_iter().collect(),
    }
}

/// A reference with its model on some kernels.
pub struct Case {
    pub source: Source,
    pub model: Model,
    pub expected: Expected,
    pub loss: Loss,
    dir: PathBuf,
}

/// What one step over a batch leaves besides the gradients.
pub struct Step {
    pub loss: f64,
    pub outputs: Vec<f64>,
}

impl Case {
    /// Opens a case; `None`, with a message, where its source is not there.
    pub fn open(source: Source, name: &str, kernels: &dyn Kernels) -> Option<Self> {
        let dir = source.dir().join(name);
        if !dir.is_dir() {
            eprintln!("skipped: {} is not here", dir.display());
            return None;
        }
        let expected: Expected =
            serde_json::from_str(&std::fs::read_to_string(dir.join("expected.json")).unwrap()).unwrap();
        let mut encoder = Encoder::new(ModelConfig::parse(&config_text(&dir)).unwrap());
        encoder.pooling = if expected.pooling.as_deref() == Some("cls") { Pooling::Cls } else { Pooling::Mean };
        let (weights, report) = load_weights(&encoder, &dir, None, kernels).unwrap();
        assert!(report.missing.is_empty() && report.reinitialised.is_empty(), "{report:?}");
        // A published bare encoder has a pooler that its embedding does not use.
        let unexpected = |name: &String| encoder.config().head == Head::Embedding && name.starts_with("pooler.");
        assert!(report.unexpected.iter().all(unexpected), "{report:?}");
        let loss = Loss {
            class_weights: expected.class_weights.clone(),
            label_smoothing: expected.label_smoothing.unwrap_or(0.0),
        };
        let model = Model { encoder, weights, tokenizer: any_tokenizer() };
        Some(Self { source, model, expected, loss, dir })
    }

    /// The same weights under the exact form of GELU.
    pub fn encoder_with_exact_gelu(&self) -> Encoder {
        let mut config: Value = serde_json::from_str(&config_text(&self.dir)).unwrap();
        for key in ["hidden_act", "activation"] {
            if let Some(activation) = config.get_mut(key) {
                *activation = "gelu".into();
            }
        }
        Encoder::new(ModelConfig::parse(&config.to_string()).unwrap())
    }

    /// A batch cut into micro-batches of `sizes`. Embeddings have no targets; theirs are empty.
    pub fn cut(&self, index: usize, sizes: &[usize]) -> Vec<Prepared> {
        let batch = &self.expected.batches[index];
        let mut first = 0;
        let mut part = |&size: &usize| {
            let ids = batch.input_ids[first..first + size].iter().zip(first as u64..);
            let sequences = ids.map(|(ids, identity)| Sequence { ids, first_segment: ids.len(), identity });
            let packed = Batch::pack(&self.model.encoder.config().encoder, sequences);
            let targets = self.targets(&batch.labels[first..first + size]);
            first += size;
            Prepared { batch: packed, targets }
        };
        sizes.iter().map(&mut part).collect()
    }

    /// A batch whole.
    pub fn whole(&self, index: usize) -> Vec<Prepared> {
        self.cut(index, &[self.expected.batches[index].input_ids.len()])
    }

    fn targets(&self, labels: &[Value]) -> Targets {
        let values = labels.iter().flat_map(numbers);
        match self.model.encoder.config().head {
            Head::Sequence(Problem::SingleLabel) | Head::Token => Targets::Classes(values.map(|x| x as i32).collect()),
            Head::Sequence(Problem::MultiLabel) => Targets::Probabilities(values.map(|x| x as f32).collect()),
            Head::Sequence(Problem::Regression) | Head::Embedding => {
                Targets::Numbers(values.map(|x| x as f32).collect())
            }
        }
    }

    /// Loss, outputs and gradients of one batch given as micro-batches.
    pub fn step(&self, kernels: &dyn Kernels, micro_batches: &[Prepared], gradients: &mut Gradients) -> Step {
        let embedding = self.model.encoder.config().head == Head::Embedding;
        let weight = |p: &Prepared| if embedding { p.batch.sequences() as f64 } else { self.loss.weight(&p.targets) };
        let scale = 1.0 / micro_batches.iter().map(weight).sum::<f64>();
        let mut result = Step { loss: 0.0, outputs: Vec::new() };
        gradients.begin();
        for prepared in micro_batches {
            let weights = &self.model.weights;
            let pass = Pass { kernels, weights, batch: &prepared.batch, dtype: kernels.dtype(), randomness: None };
            let mut tape = Tape::training(pass, gradients);
            let outputs = self.model.encoder.forward(&mut tape);
            let (loss, gradient) = match (&prepared.targets, embedding) {
                (Targets::Numbers(directions), true) => along(kernels, &outputs.tensor, directions, scale),
                (targets, _) => {
                    let (sum, gradient) = self.loss.gradient(kernels, &outputs.tensor, targets, scale);
                    (sum.sum, gradient)
                }
            };
            result.loss += loss * scale;
            result.outputs.extend(outputs.tensor.to_vec_f64());
            tape.backward(&outputs, gradient, gradients);
        }
        gradients.finish(kernels);
        result
    }

    /// The largest relative difference from the reference over all gradients, each of which must be there.
    /// What is relative to a zero is taken relative to `zero_bound * 1e4`, so that one bound of 1e-4 holds for all.
    pub fn gradient_difference(&self, gradients: &Gradients) -> f64 {
        let bytes = std::fs::read(self.dir.join("gradients.safetensors")).unwrap();
        let header = Header::parse(&bytes).unwrap();
        let (mut worst, mut compared): (f64, usize) = (0.0, 0);
        for (id, gradient) in gradients.iter() {
            let descriptor = self.model.weights.descriptor(id);
            let (row, ours) = (descriptor.row_len(), gradient.to_vec_f64());
            for part in &descriptor.parts {
                let prefixed = format!("{}{}", self.model.encoder.file_prefix(), part.name);
                let stored = header.tensors.get(&prefixed).or_else(|| header.tensors.get(&part.name));
                let stored = stored.unwrap_or_else(|| panic!("no reference for the gradient of `{}`", part.name));
                let theirs: Vec<f64> = bytes[stored.range.clone()].chunks_exact(4).map(f32_of).collect();
                let ours = &ours[part.rows.start * row..part.rows.end * row];
                let difference = relative_difference(ours, &theirs, self.source.zero_bound());
                assert!(difference <= 1e-4, "`{}`: relative difference {difference:.2e}", part.name);
                worst = worst.max(difference);
                compared += 1;
            }
        }
        assert_eq!(compared, header.tensors.len(), "every gradient of the reference is compared");
        worst
    }
}

fn config_text(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("config.json")).unwrap()
}

fn f32_of(bytes: &[u8]) -> f64 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into()
}

fn relative_difference(ours: &[f64], theirs: &[f64], zero_bound: f64) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let difference = ours.iter().zip(theirs).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let length = theirs.iter().map(|x| x * x).sum::<f64>().sqrt();
    difference / if length < 1e-7 { zero_bound * 1e4 } else { length }
}

/// `Σ output · direction` and the gradient of `scale` times it.
fn along(kernels: &dyn Kernels, outputs: &Tensor, directions: &[f32], scale: f64) -> (f64, Tensor) {
    let sum = outputs.to_vec_f64().iter().zip(directions).map(|(x, &d)| x * f64::from(d)).sum();
    let mut gradient = kernels.pool().empty(outputs.dtype(), outputs.shape());
    let scaled: Vec<f64> = directions.iter().map(|&d| f64::from(d) * scale).collect();
    let exact = kernels.pool().from_slice(&scaled, outputs.shape());
    match outputs.dtype() {
        tensor::DType::F64 => gradient = exact,
        _ => gradient.copy_from_f32(&exact.to_vec_f32()),
    }
    (sum, gradient)
}

/// The references are token ids, so any tokenizer completes their model.
fn any_tokenizer() -> model::tokenizer::Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n").unwrap();
    model::tokenizer::Tokenizer::open(dir.path()).unwrap()
}
