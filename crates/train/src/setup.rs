//! What a run needs before its first update.

use std::io;
use std::path::Path;

use model::files::{Checkpoint, ModelDir};
use model::{Gradients, LoadMode, LoadReport, Loss, Model, ModelConfig, ModelError};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tensor::{DType, Kernels};

use crate::checkpoint::{DataIdentity, Identity};
use crate::data::{LabelMap, Loaded, balanced_weights, load_job};
use crate::encode::TokenizerEncode;
use crate::error::TrainError;
use crate::evaluate::{head_of, limited_tokens};
use crate::job::{ClassWeights, Difference, FreezePatterns, Job, Precision, Task, differences};
use crate::optimizer::{Adamw, AdamwConfig};
use crate::step::Updater;

/// Model and data of a job.
pub struct Setup {
    /// The model with its starting values.
    pub model: Model,
    /// What the weights file lacked or had too much.
    pub report: LoadReport,
    /// The examples.
    pub data: Loaded,
    /// SHA-256 of what the model was loaded from.
    pub model_fingerprint: String,
    /// What the user should know.
    pub notices: Vec<String>,
    /// Keeps an unpacked archive on disk: the tokenizer's files are copied from it whenever the model is saved.
    _source: ModelDir,
}

/// Loads model and data and checks that they fit the job.
pub fn load(job: &Job, kernels: &dyn Kernels) -> Result<Setup, TrainError> {
    let dir = ModelDir::open(&job.model)?;
    let path = dir.path();
    let config = ModelConfig::parse(dir.config_text())
        .map_err(|cause| ModelError::Config { path: path.display().to_string(), cause })?;
    let tokenizer = model::tokenizer::Tokenizer::open(path)?;
    let max_tokens = limited_tokens(job.data.max_tokens, config.encoder.max_tokens())?;
    let encode = TokenizerEncode { tokenizer: &tokenizer, max_tokens };
    let has_this_head = config.head == head_of(job.task) && job.task != Task::Regression;
    let model_labels = if has_this_head { Some(LabelMap::new(config.labels.clone())?) } else { None };
    let data = load_job(&job.data, job.task, job.seed, model_labels.as_ref(), &encode)?;
    refuse_misfits(job, &data)?;

    let labels = match job.task {
        Task::Regression => vec!["score".to_string()],
        _ => data.labels.names().to_vec(),
    };
    let mode = LoadMode::FineTune { head: head_of(job.task), labels, seed: job.seed };
    let (mut model, report) = Model::load(&dir, &mode, kernels)?;
    let rate = |value: Option<f64>| value.map(|value| value as f32);
    model.encoder.set_dropout(rate(job.dropout.hidden), rate(job.dropout.attention), rate(job.dropout.classifier));
    let mut notices = notices_of(&report);
    notices.extend(data_notices(&data));
    let model_fingerprint = fingerprint(&dir)?;
    Ok(Setup { model, report, data, model_fingerprint, notices, _source: dir })
}

fn refuse_misfits(job: &Job, data: &Loaded) -> Result<(), TrainError> {
    let unfit = |text: String| Err(TrainError::Unfit(text));
    let examples = data.train.len();
    if let Some(size) = job.batch.size.filter(|&size| size > examples) {
        let text = format!(
            "batch.size is {size}, but there are only {examples} training examples: set it to {examples} or less"
        );
        return unfit(text);
    }
    if job.task != Task::Regression && data.labels.len() < 2 && job.task != Task::MultiLabel {
        let names = data.labels.names().join(", ");
        return unfit(format!("a classifier needs two labels at least; the training data have only: {names}"));
    }
    Ok(())
}

/// What the file and the model did not agree on, in words.
fn notices_of(report: &LoadReport) -> Vec<String> {
    let mut notices = Vec::new();
    let mut list = |names: &[String], what: &str| {
        if let Some(first) = names.first() {
            let more = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
            notices.push(format!("{what}: {first}{more}"));
        }
    };
    list(&report.missing, "newly initialised, not in the model file");
    list(&report.reinitialised, "newly initialised, of another shape in the model file");
    list(&report.unexpected, "in the model file but not used");
    notices
}

fn data_notices(data: &Loaded) -> Vec<String> {
    let mut notices = Vec::new();
    let parts = [("training", Some(&data.train_counts)), ("validation", data.validation_counts.as_ref())];
    for (name, counts) in parts.into_iter().filter_map(|(name, counts)| Some((name, counts?))) {
        if counts.truncated > 0 {
            notices.push(format!(
                "{} of {} {name} texts were cut to fit data.max_tokens",
                counts.truncated, counts.examples
            ));
        }
        if counts.also_in_training > 0 {
            notices.push(format!("{} {name} texts are also training texts", counts.also_in_training));
        }
    }
    notices
}

impl Setup {
    /// Gradients, moments and loss for the job's trained parameters.
    pub fn updater(&mut self, job: &Job, kernels: &dyn Kernels) -> Result<Updater, TrainError> {
        let freeze = FreezePatterns::new(&job.freeze)
            .map_err(|error| TrainError::Unfit(format!("freeze: a pattern is not a glob: {error}")))?;
        let prefix = self.model.encoder.file_prefix();
        let names = |d: &model::ParamDescr| -> Vec<String> {
            let full =
                |part: &model::FilePart| if part.root { part.name.clone() } else { format!("{prefix}{}", part.name) };
            d.parts.iter().map(full).chain([d.name.clone()]).collect()
        };
        let all: Vec<String> = self.model.weights.descriptors().iter().flat_map(names).collect();
        let unused = freeze.unused(&all).into_iter();
        self.notices.extend(unused.map(|pattern| format!("freeze: `{pattern}` matches no parameter")));
        let frozen = |d: &model::ParamDescr| names(d).iter().any(|name| freeze.matches(name));
        let gradients = Gradients::new(&self.model.weights, kernels, |d| !frozen(d));
        if gradients.iter().next().is_none() {
            return Err(TrainError::Unfit("freeze leaves no parameter to train".into()));
        }
        let table = &job.optimizer;
        let config = AdamwConfig {
            betas: table.betas,
            eps: table.eps,
            weight_decay: table.weight_decay,
            clip_norm: (table.clip_norm > 0.0).then_some(table.clip_norm),
        };
        let optimizer = Adamw::new(config, &self.model.weights, &gradients, kernels);
        let dtype = match job.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        };
        Ok(Updater { loss: loss_of(job, &self.data)?, gradients, optimizer, dtype, seed: job.seed })
    }

    /// Number of scalars that are trained.
    pub fn trainable(&self, gradients: &Gradients) -> usize {
        gradients.iter().map(|(_, gradient)| gradient.len()).sum()
    }
}

/// Class weights of a job for its training data.
fn loss_of(job: &Job, data: &Loaded) -> Result<Loss, TrainError> {
    let labels = data.labels.len();
    let class_weights = match &job.loss.class_weights {
        ClassWeights::Equal => None,
        ClassWeights::Balanced => Some(balanced_weights(&data.train.targets().label_counts(labels))),
        ClassWeights::List(weights) if weights.len() == labels => Some(weights.clone()),
        ClassWeights::List(weights) => {
            let text = format!("loss.class_weights has {} weights, but there are {labels} labels", weights.len());
            return Err(TrainError::Unfit(text));
        }
    };
    let class_weights = class_weights.map(|weights| weights.into_iter().map(|w| w as f32).collect());
    Ok(Loss { class_weights, label_smoothing: job.loss.label_smoothing as f32 })
}

/// SHA-256 over `config.json` and the weights files.
fn fingerprint(dir: &ModelDir) -> Result<String, TrainError> {
    let mut hash = Sha256::new();
    hash.update(dir.config_text());
    for path in Checkpoint::open(dir.path())?.files() {
        let mut file = std::fs::File::open(path).map_err(|cause| TrainError::io("open", path, cause))?;
        io::copy(&mut file, &mut hash).map_err(|cause| TrainError::io("read", path, cause))?;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The keys of a job that change what is computed; where it runs and what is kept of it may differ on resume.
fn job_identity(job: &Job) -> Value {
    let mut value = job.resolved();
    if let Some(map) = value.as_object_mut() {
        for key in ["out", "threads", "checkpoint", "model"] {
            map.remove(key);
        }
    }
    value
}

/// What a run of `job` is begun with.
pub fn identity(job: &Job, setup: &Setup) -> Identity {
    Identity {
        job: job_identity(job),
        model: setup.model_fingerprint.clone(),
        training: DataIdentity::of(&setup.data.train),
        validation: setup.data.validation.as_ref().map(DataIdentity::of),
        labels: setup.data.labels.names().to_vec(),
    }
}

/// Tells what differs between the run that was begun and the one that wants to continue it.
pub fn refuse_other_run(begun: &Identity, now: &Identity) -> Result<(), TrainError> {
    let mut reasons: Vec<String> = differences(&begun.job, &now.job)
        .into_iter()
        .map(|Difference { key, before, now }| format!("`{key}` was {before} and is now {now}"))
        .collect();
    if begun.model != now.model {
        reasons.push("the model that training started from has changed, in config.json or its weights".into());
    }
    reasons.extend(data_difference("training", Some(&begun.training), Some(&now.training)));
    reasons.extend(data_difference("validation", begun.validation.as_ref(), now.validation.as_ref()));
    if begun.labels != now.labels {
        reasons.push(format!("the labels were {} and are now {}", begun.labels.join(", "), now.labels.join(", ")));
    }
    if reasons.is_empty() { Ok(()) } else { Err(TrainError::Changed(reasons.join("; "))) }
}

fn data_difference(part: &str, begun: Option<&DataIdentity>, now: Option<&DataIdentity>) -> Option<String> {
    let examples = |data: Option<&DataIdentity>| data.map_or(0, |data| data.examples);
    let (before, after) = (examples(begun), examples(now));
    (begun != now).then(|| match before == after {
        true => format!("the {part} data still have {after} examples, but not the same ones"),
        false => format!("the {part} data had {before} examples and now have {after}"),
    })
}

/// Largest resident size of this process so far, in bytes; 0 where the system does not tell.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1024
}

/// The processor's name, as the system gives it.
pub fn cpu_name() -> String {
    let info = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}
