//! The profile directory: `manifest.json`, and for every table a folder of Parquet segments.
//!
//! A segment is written under a temporary name and renamed; then the manifest, which names every segment, is replaced the same
//! way. What the manifest does not name is not part of the profile, so a killed writer leaves all but its last segment.

mod error;
mod manifest;
mod read;
mod source;
mod write;

pub use error::Error;
pub use manifest::{Manifest, Segment, State};
pub use read::{Filter, Profile};
pub use write::{SegmentWriter, Writer};

/// Name of the manifest in the directory.
const MANIFEST: &str = "manifest.json";
/// Rows of a row group: the unit in which readers skip.
const GROUP_ROWS: usize = 1 << 17;

#[cfg(test)]
mod tests;
