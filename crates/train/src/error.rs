//! Why a job could not be done.

use std::path::PathBuf;

use model::ModelError;
use model::files::FileError;
use model::tokenizer::TokenizerError;

use crate::data::DataError;
use crate::job::JobError;

/// Why training, evaluation or prediction ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The job file.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model directory.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file of a model or checkpoint.
    #[error(transparent)]
    File(#[from] FileError),
    /// A text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file of the run directory.
    #[error("cannot {action} `{}`: {cause}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The profile cannot be begun.
    #[error("cannot record a profile: {0}")]
    Profile(#[from] trace::Error),
    /// The job and the model or the data do not fit each other.
    #[error("{0}")]
    Unfit(String),
    /// Nothing to resume, or nothing that can be read.
    #[error("cannot resume: {0}")]
    Resume(String),
    /// Something else is to be resumed than what was begun.
    #[error("cannot resume: {0}; undo the change, or start a new run with --out and without --resume")]
    Changed(String),
    /// The run directory holds another run.
    #[error("`{}` holds a run already: {}, or choose another directory with --out", path.display(), occupied_advice(*resumable))]
    Occupied {
        /// The run directory.
        path: PathBuf,
        /// Whether it has a checkpoint.
        resumable: bool,
    },
    /// The machine failed a run at work.
    #[error("{cause}{}", continue_note(checkpoint))]
    Failed {
        /// What happened.
        cause: Box<TrainError>,
        /// The last whole checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// A NaN or an infinity.
    #[error("{what} of step {step} is not finite: first at {place}; {advice}{}", checkpoint_note(checkpoint))]
    NotFinite {
        /// `the loss`, `the gradient` or `the result`.
        what: &'static str,
        /// The update, counted from 1.
        step: u64,
        /// The first parameter or operator whose values are not finite.
        place: String,
        /// What to do.
        advice: &'static str,
        /// The last good checkpoint.
        checkpoint: Option<PathBuf>,
    },
}

impl TrainError {
    /// Whether the user's input is at fault (exit code 2), not the machine or the run (exit code 1).
    pub fn is_input(&self) -> bool {
        match self {
            TrainError::Job(_) | TrainError::Data(_) | TrainError::Unfit(_) | TrainError::Resume(_) => true,
            TrainError::Tokenizer(_) | TrainError::Occupied { .. } | TrainError::Changed(_) => true,
            TrainError::File(error) | TrainError::Model(ModelError::File(error)) => error.is_input(),
            TrainError::Model(_) => true,
            TrainError::Io { .. }
            | TrainError::Profile(_)
            | TrainError::NotFinite { .. }
            | TrainError::Failed { .. } => false,
        }
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, cause: std::io::Error) -> Self {
        TrainError::Io { action, path: path.into(), cause }
    }
}

fn checkpoint_note(checkpoint: &Option<PathBuf>) -> String {
    match checkpoint {
        Some(path) => {
            let path = path.display();
            format!("; the last good checkpoint is `{path}`: begin a new run with it (--set model={path} --out OTHER)")
        }
        None => "; no checkpoint was written yet".into(),
    }
}

fn continue_note(checkpoint: &Option<PathBuf>) -> String {
    match checkpoint {
        Some(path) => format!("; `{}` is whole: put the cause right and continue with --resume", path.display()),
        None => "; no checkpoint was written yet: put the cause right and start again".into(),
    }
}

fn occupied_advice(resumable: bool) -> &'static str {
    if resumable { "continue it with --resume" } else { "it has no checkpoint to resume; delete it" }
}
