//! What a run amounts to.

use std::collections::VecDeque;
use std::path::PathBuf;

use serde::Serialize;

use crate::metrics::Report;

/// Losses of this many last updates make the reported training loss.
const LOSS_WINDOW: usize = 50;

/// How a run ended.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The run directory.
    pub run_dir: PathBuf,
    /// The trained model: the best by the job's metric, else the last. None before the first one was kept.
    pub model_dir: Option<PathBuf>,
    /// The profile of this session, where one was asked for and recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<PathBuf>,
    /// Updates made, over all sessions.
    pub steps: u64,
    /// Mean loss of the last 50 updates of this session.
    pub train_loss: Option<f64>,
    /// Training examples per second of training, this session.
    pub samples_per_s: f64,
    /// Tokens per second of training, this session.
    pub tokens_per_s: f64,
    /// Largest resident size of the process, in bytes.
    pub peak_rss_bytes: u64,
    /// Metrics of the model in `model_dir` on the test data, else on the validation data.
    pub eval: Option<Report>,
    /// The checkpoint to resume from, when the run was interrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<PathBuf>,
}

/// What a session's updates add up to.
#[derive(Default)]
pub struct Totals {
    /// Training examples.
    pub samples: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Time in updates.
    pub seconds: f64,
    losses: VecDeque<f64>,
    /// The most that a micro-batch kept for its backward pass.
    pub saved_bytes: usize,
}

impl Totals {
    /// Adds an update.
    pub fn add(&mut self, samples: usize, tokens: usize, seconds: f64, loss: f64, saved_bytes: usize) {
        self.samples += samples;
        self.tokens += tokens;
        self.seconds += seconds;
        self.losses.push_back(loss);
        if self.losses.len() > LOSS_WINDOW {
            self.losses.pop_front();
        }
        self.saved_bytes = self.saved_bytes.max(saved_bytes);
    }

    /// Mean loss of the last updates.
    pub fn train_loss(&self) -> Option<f64> {
        (!self.losses.is_empty()).then(|| self.losses.iter().sum::<f64>() / self.losses.len() as f64)
    }
}
