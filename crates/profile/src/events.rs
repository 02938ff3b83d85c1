//! The events of a profile in memory: what the analyses work on.

use std::ops::Range;

use trace::Texts;

mod load;

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $( $(#[$text:meta])* $variant:ident = $word:literal, )* } else $other:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $( $(#[$text])* $variant, )* }

        impl $name {
            /// The word in the profile's files.
            pub fn word(self) -> &'static str {
                match self { $( $name::$variant => $word, )* }
            }

            /// The variant of this word.
            pub fn of(word: &str) -> Self {
                match word { $( $word => $name::$variant, )* _ => $name::$other }
            }
        }
    };
}

words! {
    /// What a slice of a host thread is.
    HostKind {
        /// An operator of a framework.
        Operator = "operator",
        /// A call of the runtime library (CUDA, HIP, MTIA).
        Runtime = "runtime",
        /// A call of the driver library.
        Driver = "driver",
        /// A user's annotation.
        Annotation = "annotation",
        /// A Python frame.
        Python = "python",
        /// Waiting, as the profiler sees it.
        Sync = "sync",
        /// The profiler's own work.
        Overhead = "overhead",
        /// A span of our recorder.
        Span = "span",
        /// Anything else.
        Other = "other",
    } else Other
}

words! {
    /// What a slice of a device's stream is.
    DeviceKind {
        /// A kernel.
        Kernel = "kernel",
        /// A copy.
        Memcpy = "memcpy",
        /// A fill.
        Memset = "memset",
        /// A collective of our recorder; others' collectives are kernels whose names say so.
        Collective = "collective",
        /// Waiting for an event or a stream.
        Sync = "sync",
        /// A user's annotation, as it spans the device's work.
        Annotation = "annotation",
        /// Anything else.
        Other = "other",
    } else Other
}

words! {
    /// Why a slice is not to be trusted.
    Flag {
        /// It is.
        None = "",
        /// The profiler lost its times: they are 0. It has no place in any interval.
        LostTimestamp = "lost_timestamp",
        /// Its end is before its start.
        NegativeDuration = "negative_duration",
        /// It has a start and no end: it lasts to the last time seen on its track.
        Unfinished = "unfinished",
    } else None
}

/// What a slice of a device counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Kernels that compute.
    Compute,
    /// Collectives and point-to-point transfers between ranks.
    Communication,
    /// Copies and fills.
    Memory,
    /// Synchronisation, annotations: not work of the device.
    NotWork,
}

impl Class {
    /// The class of a slice. A kernel communicates when its name starts with `nccl` (RCCL keeps the prefix) or contains
    /// `ncclKernel` or `ncclDevKernel`, or starts with `hccl` or `oneccl`.
    pub fn of(kind: DeviceKind, name: &str) -> Class {
        match kind {
            DeviceKind::Kernel | DeviceKind::Other if is_communication(name) => Class::Communication,
            DeviceKind::Kernel | DeviceKind::Other => Class::Compute,
            DeviceKind::Collective => Class::Communication,
            DeviceKind::Memcpy | DeviceKind::Memset => Class::Memory,
            DeviceKind::Sync | DeviceKind::Annotation => Class::NotWork,
        }
    }
}

fn is_communication(name: &str) -> bool {
    ["nccl", "hccl", "oneccl"].iter().any(|prefix| name.starts_with(prefix))
        || name.contains("ncclKernel")
        || name.contains("ncclDevKernel")
}

/// A slice of a device's stream.
#[derive(Clone, Copy, Debug)]
pub struct DeviceEvent {
    /// Start, ns.
    pub ts: i64,
    /// Duration, ns.
    pub dur: i64,
    /// Number of the name in [`Run::texts`].
    pub name: u32,
    /// What it is.
    pub kind: DeviceKind,
    /// What it counts as.
    pub class: Class,
    /// Whether to trust it.
    pub flag: Flag,
    /// Track number.
    pub track: i64,
    /// Device number.
    pub device: i64,
    /// Stream number; -1 for none.
    pub stream: i64,
    /// Joins it to its launch.
    pub correlation: Option<i64>,
    /// Joins it to its operator.
    pub external_id: Option<i64>,
    /// Bytes moved, set or communicated.
    pub bytes: Option<i64>,
    /// GB/s as the source states it; NaN where it does not.
    pub bandwidth: f64,
    /// Element type, in [`Run::texts`].
    pub dtype: Option<u32>,
    /// Process group, in [`Run::texts`].
    pub group: Option<u32>,
    /// Number of the collective within its group.
    pub sequence: Option<i64>,
}

impl DeviceEvent {
    /// End, ns.
    pub fn end(&self) -> i64 {
        self.ts.saturating_add(self.dur)
    }

    /// Whether it is work of the device with a place in time: what busy and idle time are made of.
    pub fn is_work(&self) -> bool {
        self.class != Class::NotWork && matches!(self.flag, Flag::None | Flag::Unfinished)
    }
}

/// A slice of a host thread.
#[derive(Clone, Copy, Debug)]
pub struct HostEvent {
    /// Start, ns.
    pub ts: i64,
    /// Duration, ns.
    pub dur: i64,
    /// Number of the name in [`Run::texts`].
    pub name: u32,
    /// What it is.
    pub kind: HostKind,
    /// Whether to trust it.
    pub flag: Flag,
    /// Row within its track.
    pub depth: i64,
    /// Track number.
    pub track: i64,
    /// Joins a launch to what it started (1:N).
    pub correlation: Option<i64>,
    /// Joins it to its operator.
    pub external_id: Option<i64>,
    /// Operands, a JSON object in [`Run::texts`].
    pub inputs: Option<u32>,
}

impl HostEvent {
    /// End, ns.
    pub fn end(&self) -> i64 {
        self.ts.saturating_add(self.dur)
    }
}

/// A line of the timeline.
#[derive(Clone, Debug)]
pub struct Track {
    /// Number, unique in the profile.
    pub track: i64,
    /// Rank.
    pub rank: i64,
    /// `thread`, `stream`, `counter` or `other`.
    pub kind: String,
    /// Process, as the source writes it.
    pub process: String,
    /// Thread, as the source writes it.
    pub thread: String,
    /// Device of a stream.
    pub device: Option<i64>,
    /// Stream number.
    pub stream: Option<i64>,
    /// Name of the process.
    pub process_name: Option<String>,
    /// Name of the thread or stream.
    pub thread_name: Option<String>,
}

/// A rank, and how its clock was aligned.
#[derive(Clone, Debug)]
pub struct RankInfo {
    /// The rank.
    pub rank: i64,
    /// The file it came from.
    pub source: String,
    /// What was added to the source's times, ns.
    pub base_ns: i64,
    /// To be added to bring the rank onto the clock of the first, ns.
    pub offset_ns: i64,
    /// Median of the absolute deviations of matched collective ends, ns.
    pub residual_ns: Option<i64>,
    /// Collectives matched with the first rank.
    pub matched_collectives: i64,
    /// Resolution of the source's times, ns.
    pub resolution_ns: i64,
    /// Ranks in the job, where the source says.
    pub world_size: Option<i64>,
    /// Host name, where the source says.
    pub host: Option<String>,
}

/// A device, as a source describes it.
#[derive(Clone, Debug)]
pub struct Device {
    /// The rank that sees it.
    pub rank: i64,
    /// Device number.
    pub device: i64,
    /// Name of the model.
    pub name: String,
}

/// The events of one rank; times are on the rank's own clock.
#[derive(Clone, Debug)]
pub struct RankEvents {
    /// The rank, and how its clock was aligned.
    pub info: RankInfo,
    /// Slices of devices by track, then start, then falling duration.
    pub device: Vec<DeviceEvent>,
    /// Slices of threads by track, then start, then falling duration.
    pub host: Vec<HostEvent>,
}

impl RankEvents {
    /// The ranges of `device` that are one track each.
    pub fn device_tracks(&self) -> Vec<Range<usize>> {
        spans(&self.device, |event| event.track)
    }

    /// The ranges of `host` that are one track each.
    pub fn host_tracks(&self) -> Vec<Range<usize>> {
        spans(&self.host, |event| event.track)
    }
}

fn spans<T, K: PartialEq>(values: &[T], key: impl Fn(&T) -> K) -> Vec<Range<usize>> {
    let mut start = 0;
    let runs = values.chunk_by(|a, b| key(a) == key(b)).map(|run| {
        let range = start..start + run.len();
        start = range.end;
        range
    });
    runs.collect()
}

/// What to load of the host's slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// All of them, without operands.
    Slices,
    /// All of them, with operands.
    Operands,
    /// None.
    Nothing,
}

/// The events of a profile.
pub struct Run {
    /// Names, types and operands.
    pub texts: Texts,
    /// The ranks, in rising order.
    pub ranks: Vec<RankEvents>,
    /// All tracks.
    pub tracks: Vec<Track>,
    /// The devices that sources describe.
    pub devices: Vec<Device>,
}

impl Run {
    /// The text with this number.
    pub fn text(&self, id: u32) -> &str {
        self.texts.get(id)
    }
}
