//! The job file: what to train, on what, and how.
//!
//! A job is a TOML file read by [`Job::load`], which fills in every default, so that the [`Job`] in
//! hand (and the copy in `run.json`, [`Job::resolved`]) states the whole run. Each table is one struct
//! in `tables`; `docs/job-file.md` lists every key, and a test holds the two together.
//!
//! ```
//! use train::job::Job;
//!
//! let text = r#"
//!     model = "models/minilm"
//!     [data]
//!     train = "data/tweets.csv"
//!     validation_split = 0.1
//! "#;
//! let job = Job::parse(text, "tweets.toml".as_ref(), &["optimizer.lr=3e-5".to_owned()])?;
//! assert_eq!(job.optimizer.lr, 3e-5);
//! assert_eq!(job.schedule.epochs, Some(3.0));
//!
//! let wrong = Job::parse("modle = 'x'", "tweets.toml".as_ref(), &[]).unwrap_err();
//! assert!(wrong.to_string().contains("tweets.toml:1:1: unknown key `modle`: did you mean `model`?"));
//! # Ok::<(), train::job::JobError>(())
//! ```
//!
//! Relative paths in a job file start at the **current directory**, as on a command line, not at the
//! job file's folder: `train = "data/x.csv"` means what `trainyard eval MODEL data/x.csv` means.

mod check;
mod differences;
mod error;
mod freeze;
mod keys;
mod parse;
mod tables;
mod values;

#[cfg(test)]
mod manual;
#[cfg(test)]
mod tests;

pub use differences::{Difference, differences};
pub use error::{JobError, Place, Problem};
pub use freeze::FreezePatterns;
pub use keys::known_keys;
pub(crate) use keys::nearest;
pub use tables::{Batch, BatchLimit, Checkpoint, DataTable, Dropout, Evaluate, Job, Loss, Optimizer, Schedule};
pub use values::{ClassWeights, Column, Format, Keep, LabelNames, Precision, ScheduleKind, Sources, SplitBy, Task};
