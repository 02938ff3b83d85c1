//! Which values make sense, and the defaults that depend on other keys.

use std::path::{Path, PathBuf};

use super::freeze::FreezePatterns;
use super::tables::{Batch, DataTable, Job};
use super::values::{ClassWeights, Column, LabelNames, Task};
use crate::data::TextEncoding;
use crate::metrics::Metric;

/// The most threads a team may have; more is a slip of the pen.
const MAX_THREADS: usize = 1024;

/// Fills in what [`Job`]'s documentation calls "filled in". `path` is the job file's.
pub(super) fn fill_defaults(job: &mut Job, path: &Path) {
    if job.out.as_os_str().is_empty() {
        job.out = PathBuf::from("runs").join(path.file_stem().unwrap_or("run".as_ref()));
    }
    let (text, label) = DataTable::default_columns(job.task);
    job.data.text.get_or_insert(text);
    job.data.label.get_or_insert(label);
    if job.batch.tokens.is_none() {
        job.batch.size.get_or_insert(Batch::DEFAULT_SIZE);
    }
    if job.schedule.warmup_steps.is_none() {
        job.schedule.warmup_ratio.get_or_insert(0.06);
    }
    if job.schedule.steps.is_none() {
        job.schedule.epochs.get_or_insert(3.0);
    }
    if job.evaluate.every_steps.is_none() {
        job.evaluate.every_epochs.get_or_insert(1.0);
    }
    job.evaluate.metric.get_or_insert(Metric::default_for(job.task));
    if job.checkpoint.every_steps.is_none() {
        job.checkpoint.every_minutes.get_or_insert(10.0);
    }
}

impl DataTable {
    /// Names of the text and label columns when the job says nothing.
    pub fn default_columns(task: Task) -> (Column, Column) {
        let (text, label) = match task {
            Task::TokenClassification => ("tokens", "tags"),
            _ => ("text", "label"),
        };
        (Column::Name(text.to_owned()), Column::Name(label.to_owned()))
    }
}

/// Everything out of range or contradictory: full key and message.
pub(super) fn check(job: &Job) -> Vec<(&'static str, String)> {
    let mut wrong = Findings::default();
    wrong.job(job);
    wrong.data(job);
    wrong.batch(job);
    wrong.optimizer(job);
    wrong.schedule(job);
    wrong.loss(job);
    wrong.evaluate(job);
    wrong.checkpoint(job);
    wrong.0
}

#[derive(Default)]
struct Findings(Vec<(&'static str, String)>);

impl Findings {
    fn job(&mut self, job: &Job) {
        if job.model.is_empty() {
            self.add("model", "is missing: name a model directory, a model.tar.gz or hf:org/name");
        }
        if job.threads.is_some_and(|threads| threads == 0 || threads > MAX_THREADS) {
            self.add("threads", format!("must be from 1 to {MAX_THREADS}"));
        }
        if let Err(error) = FreezePatterns::new(&job.freeze) {
            self.add("freeze", format!("holds a pattern that is not a glob: {error}"));
        }
    }

    fn data(&mut self, job: &Job) {
        let data = &job.data;
        if data.train.is_empty() {
            self.add("data.train", "is missing: name one or more files or globs");
        }
        if data.validation_split.is_some() && !data.validation.is_empty() {
            self.add("data.validation_split", "and `data.validation` exclude each other: give one");
        }
        if data.validation_split.is_some_and(|share| !(share > 0.0 && share < 1.0)) {
            self.add("data.validation_split", "must lie between 0 and 1, both excluded");
        }
        if data.text_pair.is_some() && job.task == Task::TokenClassification {
            self.add("data.text_pair", "does not go with task = \"token-classification\"");
        }
        if data.label_separator.is_empty() {
            self.add("data.label_separator", "must hold at least one character");
        }
        match &data.label_names {
            Some(_) if job.task == Task::Regression => {
                self.add("data.label_names", "does not go with task = \"regression\"");
            }
            Some(LabelNames::List(names)) => {
                let mut sorted: Vec<&String> = names.iter().collect();
                sorted.sort();
                let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
                if let Some(pair) = twice {
                    self.add("data.label_names", format!("holds `{}` twice", pair[0]));
                } else if names.is_empty() {
                    self.add("data.label_names", "is empty: leave it out to learn the labels from the data");
                }
            }
            _ => {}
        }
        if let Err(error) = TextEncoding::for_label(&data.encoding) {
            self.add("data.encoding", format!("= \"{}\": {error}", data.encoding));
        }
        if data.max_tokens.is_some_and(|most| most < 3) {
            self.add("data.max_tokens", "must be at least 3: two special tokens and one of the text");
        }
        self.at_least_one("data.limit", data.limit);
    }

    fn batch(&mut self, job: &Job) {
        if job.batch.size.is_some() && job.batch.tokens.is_some() {
            self.add("batch.tokens", "and `batch.size` exclude each other: give one");
        }
        self.at_least_one("batch.size", job.batch.size);
        self.at_least_one("batch.tokens", job.batch.tokens);
        self.at_least_one("batch.accumulate", Some(job.batch.accumulate));
    }

    fn optimizer(&mut self, job: &Job) {
        let optimizer = &job.optimizer;
        self.above_zero("optimizer.lr", Some(optimizer.lr));
        if optimizer.betas.iter().any(|beta| !(0.0..1.0).contains(beta)) {
            self.add("optimizer.betas", "must both be at least 0 and below 1");
        }
        self.above_zero("optimizer.eps", Some(optimizer.eps));
        self.zero_or_more("optimizer.weight_decay", optimizer.weight_decay);
        self.zero_or_more("optimizer.clip_norm", optimizer.clip_norm);
    }

    fn schedule(&mut self, job: &Job) {
        let schedule = &job.schedule;
        if schedule.warmup_steps.is_some() && schedule.warmup_ratio.is_some() {
            self.add("schedule.warmup_ratio", "and `schedule.warmup_steps` exclude each other: give one");
        }
        if schedule.epochs.is_some() && schedule.steps.is_some() {
            self.add("schedule.epochs", "and `schedule.steps` exclude each other: give one");
        }
        self.share("schedule.warmup_ratio", schedule.warmup_ratio);
        self.above_zero("schedule.epochs", schedule.epochs);
        self.at_least_one("schedule.steps", schedule.steps);
        self.above_zero("schedule.max_minutes", schedule.max_minutes);
        if let (Some(warmup), Some(steps)) = (schedule.warmup_steps, schedule.steps)
            && warmup > steps
        {
            self.add("schedule.warmup_steps", format!("must not exceed `schedule.steps` ({steps})"));
        }
        self.share("dropout.hidden", job.dropout.hidden);
        self.share("dropout.attention", job.dropout.attention);
        self.share("dropout.classifier", job.dropout.classifier);
    }

    fn loss(&mut self, job: &Job) {
        let cross_entropy = matches!(job.task, Task::Classification | Task::TokenClassification);
        let mismatch = format!("does not go with task = \"{}\"", job.task.name());
        if job.loss.class_weights != ClassWeights::Equal && !cross_entropy {
            self.add("loss.class_weights", mismatch.clone());
        }
        if let ClassWeights::List(weights) = &job.loss.class_weights {
            if weights.iter().any(|weight| !(weight.is_finite() && *weight >= 0.0)) {
                self.add("loss.class_weights", "must all be finite and 0 or more");
            } else if weights.iter().sum::<f64>() == 0.0 {
                self.add("loss.class_weights", "must not all be 0");
            }
        }
        if job.loss.label_smoothing != 0.0 && !cross_entropy {
            self.add("loss.label_smoothing", mismatch);
        }
        self.share("loss.label_smoothing", Some(job.loss.label_smoothing));
    }

    fn evaluate(&mut self, job: &Job) {
        let evaluate = &job.evaluate;
        if evaluate.every_steps.is_some() && evaluate.every_epochs.is_some() {
            self.add("evaluate.every_epochs", "and `evaluate.every_steps` exclude each other: give one");
        }
        self.at_least_one("evaluate.every_steps", evaluate.every_steps);
        self.above_zero("evaluate.every_epochs", evaluate.every_epochs);
        if let Some(metric) = evaluate.metric
            && !metric.suits(job.task)
        {
            let suited: Vec<&str> = Metric::all_for(job.task).map(Metric::name).collect();
            self.add(
                "evaluate.metric",
                format!(
                    "= \"{}\" does not go with task = \"{}\": choose one of {}",
                    metric.name(),
                    job.task.name(),
                    suited.join(", ")
                ),
            );
        }
        self.at_least_one("evaluate.early_stopping_patience", evaluate.early_stopping_patience);
        let validates = job.data.validation_split.is_some() || !job.data.validation.is_empty();
        if evaluate.early_stopping_patience.is_some() && !validates {
            self.add(
                "evaluate.early_stopping_patience",
                "needs validation data: give `data.validation` or `data.validation_split`",
            );
        }
    }

    fn checkpoint(&mut self, job: &Job) {
        self.at_least_one("checkpoint.every_steps", job.checkpoint.every_steps);
        self.above_zero("checkpoint.every_minutes", job.checkpoint.every_minutes);
        self.at_least_one("checkpoint.keep", Some(job.checkpoint.keep));
    }

    fn add(&mut self, key: &'static str, message: impl Into<String>) {
        self.0.push((key, message.into()));
    }

    fn at_least_one<T: PartialEq + Default>(&mut self, key: &'static str, value: Option<T>) {
        if value == Some(T::default()) {
            self.add(key, "must be at least 1");
        }
    }

    fn above_zero(&mut self, key: &'static str, value: Option<f64>) {
        if let Some(value) = value
            && !(value.is_finite() && value > 0.0)
        {
            self.add(key, format!("must be above 0 and finite, not {value}"));
        }
    }

    fn zero_or_more(&mut self, key: &'static str, value: f64) {
        if !(value.is_finite() && value >= 0.0) {
            self.add(key, format!("must be 0 or more and finite, not {value}"));
        }
    }

    /// A number in [0, 1).
    fn share(&mut self, key: &'static str, value: Option<f64>) {
        if let Some(value) = value
            && !(0.0..1.0).contains(&value)
        {
            self.add(key, format!("must be at least 0 and below 1, not {value}"));
        }
    }
}
