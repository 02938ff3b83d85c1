//! The tables of a job file, one struct each. Field names are the keys; `docs/job-file.md` is their manual.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::values::{ClassWeights, Column, Format, Keep, LabelNames, Precision, ScheduleKind, Sources, SplitBy, Task};
use crate::metrics::Metric;

/// A whole training job. After [`Job::load`] every default that depends on another key is filled in,
/// and a `None` means "as the model says" or "not limited", never "not yet decided".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Job {
    /// Model directory, `model.tar.gz`, or `hf:org/name`. Required.
    pub model: String,
    /// What the head predicts.
    pub task: Task,
    /// Seed of everything random: split, order of the examples, dropout, a new head.
    pub seed: u64,
    /// Threads of the kernel team; `None` = the physical cores.
    pub threads: Option<usize>,
    /// Number format of working weights and saved activations.
    pub precision: Precision,
    /// Run directory. Filled in as `runs/<name of the job file>`.
    pub out: PathBuf,
    /// Glob patterns of the parameters that stay as they are.
    pub freeze: Vec<String>,
    /// `[data]`
    pub data: DataTable,
    /// `[batch]`
    pub batch: Batch,
    /// `[optimizer]`
    pub optimizer: Optimizer,
    /// `[schedule]`
    pub schedule: Schedule,
    /// `[dropout]`
    pub dropout: Dropout,
    /// `[loss]`
    pub loss: Loss,
    /// `[evaluate]`
    pub evaluate: Evaluate,
    /// `[checkpoint]`
    pub checkpoint: Checkpoint,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            model: String::new(),
            task: Task::default(),
            seed: 42,
            threads: None,
            precision: Precision::default(),
            out: PathBuf::new(),
            freeze: Vec::new(),
            data: DataTable::default(),
            batch: Batch::default(),
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            dropout: Dropout::default(),
            loss: Loss::default(),
            evaluate: Evaluate::default(),
            checkpoint: Checkpoint::default(),
        }
    }
}

/// `[data]`: where the examples are and how to read them. Also the reader's options for `eval`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataTable {
    /// Training files. Required in a job.
    pub train: Sources,
    /// Validation files; not together with `validation_split`.
    pub validation: Sources,
    /// Share of the training rows held out for validation, in (0, 1).
    pub validation_split: Option<f64>,
    /// What decides on which side of the split a row falls.
    pub validation_split_by: SplitBy,
    /// Files evaluated once, after training.
    pub test: Sources,
    /// File format; `auto` goes by the file's name.
    pub format: Format,
    /// Column or field of the text. Filled in as `text`, or `tokens` for token classification.
    pub text: Option<Column>,
    /// Column or field of the second text, for tasks on pairs of texts.
    pub text_pair: Option<Column>,
    /// Column or field of the label. Filled in as `label`, or `tags` for token classification.
    pub label: Option<Column>,
    /// Splits the labels inside one cell, for `multi-label` data in delimited and text files.
    pub label_separator: String,
    /// Whether TSV and CSV files begin with a row of column names.
    pub header: bool,
    /// Names of the labels in the order of their ids, or the path of a file with `id TAB name` lines.
    pub label_names: Option<LabelNames>,
    /// `utf-8` (strict), `utf-8-lossy`, or any encoding label of the WHATWG standard (strict).
    pub encoding: String,
    /// Longest example in tokens, special tokens included; `None` = what the model can take.
    pub max_tokens: Option<usize>,
    /// Which rows to keep.
    pub keep: Keep,
    /// Drop rows whose text occurred before.
    pub dedup: bool,
    /// Train on at most this many examples, the first ones; `None` = all.
    pub limit: Option<usize>,
}

impl Default for DataTable {
    fn default() -> Self {
        Self {
            train: Sources::default(),
            validation: Sources::default(),
            validation_split: None,
            validation_split_by: SplitBy::default(),
            test: Sources::default(),
            format: Format::default(),
            text: None,
            text_pair: None,
            label: None,
            label_separator: ",".to_owned(),
            header: true,
            label_names: None,
            encoding: "utf-8".to_owned(),
            max_tokens: None,
            keep: Keep::default(),
            dedup: false,
            limit: None,
        }
    }
}

/// `[batch]`: how many examples make one update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Examples in a micro-batch. Filled in as 32 when `tokens` is absent.
    pub size: Option<usize>,
    /// Token budget of a micro-batch, instead of `size`.
    pub tokens: Option<usize>,
    /// Micro-batches per update; their gradients are summed before the optimizer step.
    pub accumulate: usize,
    /// Visit the examples in a new order each epoch.
    pub shuffle: bool,
}

impl Default for Batch {
    fn default() -> Self {
        Self { size: None, tokens: None, accumulate: 1, shuffle: true }
    }
}

/// What closes a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchLimit {
    /// This many examples.
    Examples(usize),
    /// This many tokens, special tokens included; a longer example stands alone.
    Tokens(usize),
}

impl Batch {
    /// Examples in a micro-batch when the job says nothing.
    pub const DEFAULT_SIZE: usize = 32;

    /// The limit these keys express.
    pub fn limit(&self) -> BatchLimit {
        match (self.tokens, self.size) {
            (Some(tokens), _) => BatchLimit::Tokens(tokens),
            (None, size) => BatchLimit::Examples(size.unwrap_or(Self::DEFAULT_SIZE)),
        }
    }
}

/// `[optimizer]`: AdamW with decoupled weight decay (Loshchilov & Hutter, 2019).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optimizer {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of the running mean of the gradient and of its square.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled decay per update, scaled by the learning rate; biases and norms are exempt.
    pub weight_decay: f64,
    /// Largest global L2 norm of the gradient; 0 turns clipping off.
    pub clip_norm: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { lr: 2e-5, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01, clip_norm: 1.0 }
    }
}

/// `[schedule]`: how long to train, and the learning rate on the way.
/// [`crate::schedule::LrSchedule`] holds the arithmetic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// Shape of the decay after warm-up.
    pub kind: ScheduleKind,
    /// Updates over which the rate rises from 0 to its peak.
    pub warmup_steps: Option<u64>,
    /// Warm-up as a share of all updates. Filled in as 0.06 when `warmup_steps` is absent.
    pub warmup_ratio: Option<f64>,
    /// Passes over the training data; parts are allowed. Filled in as 3 when `steps` is absent.
    pub epochs: Option<f64>,
    /// Updates in all, instead of `epochs`.
    pub steps: Option<u64>,
    /// Wall-clock limit of training in minutes; the decay then also runs with the clock.
    pub max_minutes: Option<f64>,
}

/// `[dropout]`: probabilities that replace those of the model's configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dropout {
    /// After embeddings and after each sub-layer.
    pub hidden: Option<f64>,
    /// On attention probabilities.
    pub attention: Option<f64>,
    /// Before the classifier.
    pub classifier: Option<f64>,
}

/// `[loss]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Loss {
    /// Weight of each label in the cross-entropy.
    pub class_weights: ClassWeights,
    /// Share of the target spread evenly over all labels, in [0, 1).
    pub label_smoothing: f64,
}

/// `[evaluate]`: when to look at the validation data, and which number decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evaluate {
    /// Updates between evaluations, instead of `every_epochs`.
    pub every_steps: Option<u64>,
    /// Epochs between evaluations. Filled in as 1 when `every_steps` is absent.
    pub every_epochs: Option<f64>,
    /// Selects the best checkpoint. Filled in by task.
    pub metric: Option<Metric>,
    /// Stop after this many evaluations in a row without a better metric; `None` = never.
    pub early_stopping_patience: Option<u32>,
}

/// `[checkpoint]`: how often to save, and how many to keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Updates between checkpoints.
    pub every_steps: Option<u64>,
    /// Minutes between checkpoints. Filled in as 10 when `every_steps` is absent.
    pub every_minutes: Option<f64>,
    /// Checkpoints that stay on disk, beside the best one.
    pub keep: usize,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every_steps: None, every_minutes: None, keep: 2 }
    }
}
