use std::io;
use std::path::{Path, PathBuf};

/// Why an import ends without a profile.
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
    /// No format this program reads.
    #[error("{path}: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// Nothing to import.
    #[error("{path}: no profile in this folder; files that were looked at: {looked_at}")]
    NothingThere {
        /// The folder.
        path: PathBuf,
        /// Their names.
        looked_at: String,
    },
    /// A limit that bounds memory.
    #[error("more than {limit} {what}: this is no profile, or a hostile one")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The profile cannot be written.
    #[error(transparent)]
    Profile(#[from] trace::Error),
}

impl Error {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    pub(super) fn format(path: &Path, reason: impl ToString) -> Error {
        Error::Format { path: path.to_owned(), reason: reason.to_string() }
    }
}
