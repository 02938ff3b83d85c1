//! Files of other profilers, turned into a profile directory.
//!
//! Each format has an importer, `fn read(path: &Path, gather: &mut Gather<'_>) -> Result<SourceFacts, Error>` or the like, that
//! pushes typed rows in any order. The merge sorts them, numbers tracks and ranks, draws overlapping slices in rows of their
//! own, aligns the clocks of ranks, and writes the profile.

mod align;
mod assemble;
mod chrome;
mod diagnose;
mod diagnostics;
mod discover;
mod error;
mod facts;
mod gather;
mod launches;
mod listen;
mod merge;
mod nsight;
mod ranks;
mod runs;
mod secrets;
mod source;
mod xplane;

pub use assemble::{Options, RankLine, SourceLine, Summary, import};
pub use diagnostics::{Anomaly, Diagnostic, Diagnostics};
pub use error::Error;
pub use gather::{Gather, Naming, TrackKey, TrackKind};

/// What an importer says of one source, besides its rows.
#[derive(Clone, Debug, Default)]
pub struct SourceFacts {
    /// The ranks in the source: a Kineto file is one part.
    pub parts: Vec<PartFacts>,
    /// Added to every time of the source, ns.
    pub base_ns: i64,
    /// Wall-clock time (UTC, ns since 1970) minus (time of the source + base), where known.
    pub wall_offset_ns: Option<i64>,
    /// Resolution of the source's times, ns.
    pub resolution_ns: i64,
    /// Keys and JSON values for the table `metadata`.
    pub metadata: Vec<(String, String)>,
    /// Events read.
    pub events: u64,
    /// Bytes of the source, uncompressed.
    pub bytes: u64,
}

/// What an importer says of one rank of a source.
#[derive(Clone, Debug, Default)]
pub struct PartFacts {
    /// The rank, if the source states it, and how (for `ranks.rank_from`).
    pub rank: Option<(i64, &'static str)>,
    /// Ranks in the job.
    pub world_size: Option<i64>,
    /// Host name.
    pub host: Option<String>,
    /// Devices it describes.
    pub devices: Vec<DeviceFacts>,
}

/// A device, as a source describes it.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// Device number.
    pub device: i64,
    /// Name of the model.
    pub name: String,
    /// Memory, bytes.
    pub memory_bytes: Option<i64>,
    /// Streaming multiprocessors.
    pub multiprocessors: Option<i64>,
    /// Everything else: a JSON object.
    pub properties: Option<String>,
}
