//! `model.tar.gz`: a model directory as one file.
//!
//! [`pack`] writes the same bytes for the same files. [`unpack`] trusts nothing: an archive can only make regular files
//! and directories below its destination, within the [`Limits`] given, and leaves nothing behind when it is refused.

mod guard;
mod names;
mod pack;
mod unpack;

pub use pack::pack;
pub use unpack::unpack;

/// How much an archive may unpack to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most entries, files and directories together.
    pub entries: usize,
    /// Most bytes when unpacked, all entries and headers together.
    pub total_bytes: u64,
    /// Most bytes unpacked per byte of the archive; checked once more than [`ratio_free_bytes`](Self::ratio_free_bytes)
    /// have been unpacked, since small models of zeros are honest.
    pub ratio: u64,
    /// Bytes that may be unpacked at any ratio.
    pub ratio_free_bytes: u64,
}

impl Default for Limits {
    /// 10,000 entries, 64 GiB, 200 to 1 past 64 MiB. Trained weights compress to about 0.9 of their size, vocabularies
    /// to a third.
    fn default() -> Self {
        Self { entries: 10_000, total_bytes: 64 << 30, ratio: 200, ratio_free_bytes: 64 << 20 }
    }
}

/// Why an archive cannot be packed or is refused. Entry names are shown with control characters escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The gzip layer is damaged.
    #[error("not a complete gzip file ({cause}): it is truncated or damaged")]
    Gzip {
        /// What the decoder said.
        cause: String,
    },
    /// The tar layer is damaged.
    #[error("not a tar archive inside, or a damaged one: {cause}")]
    Tar {
        /// What the reader said.
        cause: String,
    },
    /// An entry that could leave the destination, or is not a file or directory.
    #[error("refused: entry {entry:?} {problem}")]
    Refused {
        /// The entry's name.
        entry: String,
        /// Why it is refused.
        problem: String,
    },
    /// More entries than allowed.
    #[error("refused: more than {limit} entries")]
    TooManyEntries {
        /// The limit.
        limit: usize,
    },
    /// More bytes than allowed.
    #[error("refused: it unpacks to more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// A compression bomb.
    #[error("refused: {packed} bytes unpack to more than {unpacked}, over {ratio} times as many (a compression bomb)")]
    Bomb {
        /// Bytes of the archive read so far.
        packed: u64,
        /// Bytes they unpacked to.
        unpacked: u64,
        /// The limit.
        ratio: u64,
    },
    /// The destination holds something already.
    #[error("cannot unpack into `{0}`: it exists and is not an empty directory")]
    Occupied(String),
    /// A directory without a model.
    #[error("cannot pack `{0}`: it has no config.json, so it is no model directory")]
    NoConfig(String),
    /// The file system refused.
    #[error("cannot {action} `{path}`: {cause}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file it was tried on.
        path: String,
        /// The system's answer.
        cause: std::io::Error,
    },
}

impl ArchiveError {
    pub(super) fn io(action: &'static str, path: &std::path::Path, cause: std::io::Error) -> Self {
        Self::Io { action, path: path.display().to_string(), cause }
    }
}

#[cfg(test)]
pub(super) mod tests;
