//! What can be wrong with a job file, and where.

use std::fmt;
use std::path::PathBuf;

/// Why a job could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("cannot read the job file {}: {source}", .path.display())]
    Read {
        /// The path as tried, from the current directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is larger than any job.
    #[error(
        "{}: {bytes} bytes are too many for a job file (at most {most}); is this a data file?",
        .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest size accepted.
        most: u64,
    },
    /// A `--set` argument that is not `key=value`.
    #[error("--set {argument}: {problem}; write it as key=value, for example optimizer.lr=3e-5")]
    Set {
        /// The argument as given.
        argument: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Everything found wrong with the keys and values, one a line.
    #[error("{}", join_lines(.0))]
    Invalid(
        /// At least one.
        Vec<Problem>,
    ),
}

/// One thing wrong with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the key or its value stands.
    pub place: Place,
    /// Full path of the key, such as `optimizer.lr`; empty for a syntax error.
    pub key: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The job file; line and column count from 1, the column in characters.
    Text {
        /// The job file.
        path: PathBuf,
        /// Line from 1.
        line: usize,
        /// Column from 1.
        column: usize,
    },
    /// A `--set` argument, as given.
    Set(String),
    /// Nowhere: the key is missing from this job file.
    Missing(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Text { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Place::Set(argument) => write!(f, "--set {argument}"),
            Place::Missing(path) => write!(f, "{}", path.display()),
        }
    }
}

fn join_lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}
