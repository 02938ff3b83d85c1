//! Why a handler could not be started, or a request not be answered.

use std::{fmt, path::PathBuf, time::Duration};

/// Why a handler does not start or does not answer. [`HandlerError::status`] and [`HandlerError::code`] are for clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// The script or something beside it cannot be read.
    #[error("cannot read {path}: {reason}")]
    Script {
        /// What was to be read.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The base interpreter does not run, or is older than Python 3.9.
    #[error(
        "cannot use {python} as the Python interpreter: {reason}; install Python 3.9 or later, or name another one"
    )]
    Interpreter {
        /// The interpreter as it was given.
        python: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The virtual environment could not be made or filled.
    #[error("cannot install {requirements}: {reason}")]
    Install {
        /// The model's `requirements.txt`.
        requirements: PathBuf,
        /// pip's last lines, or what else went wrong.
        reason: String,
    },
    /// The script's functions do not fit the contract.
    #[error("{script}: {reason}")]
    Contract {
        /// The script.
        script: PathBuf,
        /// What was found and what is missing.
        reason: String,
    },
    /// A worker process could not be created or talked to.
    #[error("worker {worker}: {reason}")]
    Process {
        /// The worker's number.
        worker: usize,
        /// The system's reason, or what the worker sent.
        reason: String,
    },
    /// The script was not imported and its model not loaded in time.
    #[error("{stage} did not end within {}{}", seconds(*limit), on_stderr(stderr))]
    StartTimeout {
        /// `import` or `model_fn`.
        stage: &'static str,
        /// The time it had.
        limit: Duration,
        /// The line on stderr that says most.
        stderr: Option<String>,
    },
    /// The script raised an exception; its traceback is in the log.
    #[error("{0}")]
    Raised(Raised),
    /// The script ran out of the memory it may use.
    #[error("{stage} ran out of memory{}", limit.map_or_else(String::new, |limit| format!(" (the worker may use {limit} bytes)")))]
    OutOfMemory {
        /// The function.
        stage: String,
        /// Bytes of address space that the worker may use, where limited.
        limit: Option<u64>,
    },
    /// The worker's process ended while it loaded or answered; its last lines are in the log.
    #[error("worker {worker} ended during {stage}: {exit}{}", on_stderr(stderr))]
    Crashed {
        /// The worker's number.
        worker: usize,
        /// What it was doing.
        stage: &'static str,
        /// Exit code or signal.
        exit: String,
        /// The line on stderr since the request began that says most: the interpreter's own reason, the last exception, or
        /// just the last line. More of them are in the log.
        stderr: Option<String>,
    },
    /// The request's deadline passed.
    #[error("the deadline passed while {}", if *running { "the handler ran; its worker is being restarted" } else { "waiting for a free worker" })]
    DeadlineExceeded {
        /// Whether a worker had begun with the request.
        running: bool,
    },
    /// The queue is full.
    #[error("{queue} requests wait for {workers} worker(s) already; try again later")]
    Overloaded {
        /// Requests that may wait.
        queue: usize,
        /// Worker processes.
        workers: usize,
    },
    /// No worker is alive, and the last attempt to start one failed.
    #[error("no worker runs: {reason}")]
    Unavailable {
        /// Why the last start failed.
        reason: String,
    },
    /// The handler was stopped.
    #[error("the handler is stopped")]
    Stopped,
    /// The request is larger than [`super::HandlerOptions::request_limit`].
    #[error("the request's {part} has {size} bytes, at most {limit} are passed to the handler")]
    RequestTooLarge {
        /// `body` or `headers`.
        part: &'static str,
        /// Bytes.
        size: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The response is larger than [`super::HandlerOptions::response_limit`].
    #[error("the handler's response has {size} bytes, at most {limit} are allowed")]
    ResponseTooLarge {
        /// Bytes.
        size: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The script has neither `predict_fn` nor `transform_fn`, nor a model that can be called.
    #[error("{script} has no function that predicts; use `input` and `output` around the built-in engine")]
    PredictsNothing {
        /// The script.
        script: PathBuf,
    },
}

/// An exception of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raised {
    /// `import` or the function's name.
    pub stage: String,
    /// The exception's type.
    pub exception: String,
    /// Its message, at most some thousand characters.
    pub message: String,
    /// File and line in the model's code, such as `inference.py line 12`.
    pub location: Option<String>,
    /// 400 for a value, type or lookup error of `input_fn`, the exception's own `status_code` or `error_code` where it has
    /// one between 400 and 599, else 500.
    pub status: u16,
    /// Whether a default function refused the content type or the accepted types.
    pub refused: bool,
}

impl fmt::Display for Raised {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.refused {
            return out.write_str(&self.message);
        }
        write!(out, "{} raised {}", self.stage, self.exception)?;
        if !self.message.is_empty() {
            write!(out, ": {}", self.message)?;
        }
        self.location.iter().try_for_each(|location| write!(out, " ({location})"))
    }
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}

fn on_stderr(line: &Option<String>) -> String {
    line.as_ref().map_or_else(String::new, |line| format!("; on stderr: {line}"))
}

impl HandlerError {
    /// The HTTP status that fits; for an exception with a status of its own between 400 and 599, that one.
    pub fn status(&self) -> u16 {
        match self {
            Self::Raised(raised) => raised.status,
            Self::DeadlineExceeded { .. } => 504,
            Self::Overloaded { .. } => 429,
            Self::RequestTooLarge { .. } => 413,
            Self::Unavailable { .. } | Self::Stopped => 503,
            _ => 500,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Script { .. } => "handler_script_unreadable",
            Self::Interpreter { .. } => "handler_interpreter",
            Self::Install { .. } => "handler_requirements",
            Self::Contract { .. } => "handler_contract",
            Self::Process { .. } => "handler_process",
            Self::StartTimeout { .. } => "handler_start_timeout",
            Self::Raised(Raised { status: 415, .. }) => "unsupported_content_type",
            Self::Raised(Raised { status: 406, .. }) => "unsupported_accept",
            Self::Raised(Raised { status: 400..=499, .. }) => "handler_rejected_input",
            Self::Raised(_) => "handler_raised",
            Self::OutOfMemory { .. } => "handler_out_of_memory",
            Self::Crashed { .. } => "handler_crashed",
            Self::DeadlineExceeded { .. } => "deadline_exceeded",
            Self::Overloaded { .. } => "overloaded",
            Self::Unavailable { .. } => "handler_unavailable",
            Self::Stopped => "handler_stopped",
            Self::RequestTooLarge { .. } => "request_too_large",
            Self::ResponseTooLarge { .. } => "response_too_large",
            Self::PredictsNothing { .. } => "handler_predicts_nothing",
        }
    }
}
