use std::io;
use std::path::{Path, PathBuf};

/// Why a profile cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system says no.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Not a profile directory.
    #[error("{path}: not a profile: it has no manifest.json")]
    NoProfile {
        /// The path that was given.
        path: PathBuf,
    },
    /// The manifest cannot be read.
    #[error("{path}: {reason}")]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A segment is damaged, or not ours.
    #[error("{path}: {reason}")]
    Segment {
        /// The segment.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Something is in the way.
    #[error("{path}: exists already and is not an empty directory; name another, or remove it")]
    Exists {
        /// The path that was given.
        path: PathBuf,
    },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    pub(crate) fn segment(path: &Path, reason: impl ToString) -> Error {
        Error::Segment { path: path.to_owned(), reason: reason.to_string() }
    }
}
