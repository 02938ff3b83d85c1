//! Profiles written in the formats of other tools.
//!
//! [`export`] reads a profile piece by piece and writes it as Chrome JSON (Kineto's dialect, which the importer reads back
//! without loss), as a Perfetto trace, or as one Parquet or CSV file per table. Every file appears whole or not at all.

mod chrome;
mod csv;
mod output;
mod parquet;
mod perfetto;
mod rows;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use trace::Profile;

/// A format to export to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A Perfetto trace (protobuf), all ranks on one clock. Packed with gzip or zstd when the name ends so.
    Perfetto,
    /// Chrome JSON as Kineto writes it: a file for one rank, a directory of files for several. Packed with gzip or zstd when
    /// the name ends so; files in a directory are packed with gzip.
    Chrome,
    /// A directory with one Parquet file per table.
    Parquet,
    /// A directory with one CSV file per table; nulls are empty fields.
    Csv,
}

/// What was written.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The files, in the order of writing.
    pub files: Vec<Written>,
    /// Rows of the profile's tables in them, or events in the words of the format: slices, instants, counter values, arrow
    /// ends that are no part of a slice.
    pub events: u64,
}

/// A file that was written.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes on disk.
    pub bytes: u64,
}

/// Why an export ends without its files.
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
    /// Something is in the way.
    #[error("{path}: exists already; name another, or ask to overwrite it")]
    Exists {
        /// The file or directory.
        path: PathBuf,
    },
    /// Nothing to write.
    #[error("{path}: the profile names no rank, so there is nothing to export")]
    NoRanks {
        /// The profile.
        path: PathBuf,
    },
    /// The profile cannot be read, or its copy not be written.
    #[error(transparent)]
    Profile(#[from] trace::Error),
}

impl Error {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}

/// Writes a profile to `out`: a file, or a directory where the format is one of several files. What exists is replaced only
/// when `overwrite` says so, and then file by file: nothing else in a directory is touched.
pub fn export(profile: &Profile, format: Format, out: &Path, overwrite: bool) -> Result<Summary, Error> {
    match format {
        Format::Perfetto => perfetto::export(profile, out, overwrite),
        Format::Chrome => chrome::export(profile, out, overwrite),
        Format::Parquet => parquet::export(profile, out, overwrite),
        Format::Csv => csv::export(profile, out, overwrite),
    }
}

#[cfg(test)]
mod tests;
