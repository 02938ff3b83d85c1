//! Training jobs: the job file, data, the loop, AdamW, metrics and checkpoints.
//!
//! [`job::Job`] is what a user writes, [`run`] does it and tells an [`Observer`] on the way, [`evaluate_source`] and
//! [`predict`] use what it leaves. The pieces stand alone: [`data`] makes data sets of files, [`sampler`] batches of data
//! sets, [`schedule`] learning rates, [`metrics`] reports, [`Adamw`] updates.

mod batching;
mod checkpoint;
pub mod data;
mod encode;
mod error;
mod evaluate;
pub mod job;
mod log;
pub mod metrics;
mod optimizer;
mod outcome;
mod progress;
mod record;
mod run;
pub mod sampler;
pub mod schedule;
mod setup;
mod step;

pub use batching::{Prepared, prepare};
pub use encode::TokenizerEncode;
pub use error::TrainError;
pub use evaluate::{Prediction, TokenLabel, evaluate, evaluate_source, head_of, limited_tokens, predict, task_of};
pub use optimizer::{Adamw, AdamwConfig, Moments};
pub use outcome::Outcome;
pub use progress::{Event, Observer, StepRecord};
pub use record::Window;
pub use run::{ProfileRequest, run};
pub use step::{Update, Updater};
