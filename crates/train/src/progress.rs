//! What a run tells while it works; the CLI draws it.

use std::path::PathBuf;

use serde::Serialize;

use crate::data::PartCounts;
use crate::metrics::{Metric, Report};

/// Something that happened in a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// Something the user should know but need not act on.
    Notice(String),
    /// Everything is read; training begins.
    Started {
        /// Kernels and threads.
        device: String,
        /// Number of parameters, and of those that are trained.
        parameters: (usize, usize),
        /// The training examples.
        train: &'a PartCounts,
        /// The validation examples.
        validation: Option<&'a PartCounts>,
        /// Updates planned.
        total_steps: u64,
        /// Updates made already, by the run that this one continues.
        resumed_at: Option<u64>,
    },
    /// One update was made.
    Step(&'a StepRecord),
    /// The validation data were evaluated.
    Evaluated {
        /// Updates made.
        step: u64,
        /// The metrics.
        report: &'a Report,
        /// What selects the best model.
        metric: Metric,
        /// Whether it is the best so far.
        best: bool,
    },
    /// A checkpoint was written.
    Saved(PathBuf),
    /// Training stops before its planned end.
    StoppedEarly(String),
}

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, Serialize)]
pub struct StepRecord {
    /// Updates made, this one included.
    pub step: u64,
    /// Passes over the data so far.
    pub epoch: f64,
    /// Mean loss of the update.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Global norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Examples in the update.
    pub samples: usize,
    /// Tokens in the update.
    pub tokens: usize,
    /// Seconds the update took.
    pub seconds: f64,
    /// How much of the run is done, from 0 to 1.
    pub progress: f64,
}

/// Receives the events of a run in order.
pub trait Observer {
    /// Called for every event, between updates.
    fn observe(&mut self, event: Event);
}

/// Ignores everything.
impl Observer for () {
    fn observe(&mut self, _: Event) {}
}
