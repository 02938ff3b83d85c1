//! The events of a profile in memory: what the analyses work on.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;
use trace::schema::Table;
use trace::{Batch, Error, NO_INT, NO_TEXT, Profile, Texts};

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
    /// Reads the events of all ranks, or of one.
    pub fn load(profile: &Profile, rank: Option<i64>, host: Host) -> Result<Run, Error> {
        let filter = trace::Filter { rank, ..Default::default() };
        let mut texts = Texts::new();
        let mut ranks: BTreeMap<i64, RankEvents> = load_ranks(profile)?
            .into_iter()
            .filter(|info| rank.is_none_or(|rank| rank == info.rank))
            .map(|info| (info.rank, RankEvents { info, device: Vec::new(), host: Vec::new() }))
            .collect();
        // Rows of a rank that no `ranks` row names (a writer killed early) still count.
        let unknown = |rank| move || RankEvents { info: RankInfo::unknown(rank), device: Vec::new(), host: Vec::new() };
        // Texts get their numbers in the order of the rows, whichever thread was first.
        for part in profile.read_mapped(Table::Device, &DEVICE_COLUMNS, filter, |rows| device_events(&rows))? {
            let number = renumber(&part.texts, &mut texts);
            for (rank, mut events) in part.events {
                for event in &mut events {
                    event.name = number(event.name);
                    event.dtype = event.dtype.map(&number);
                    event.group = event.group.map(&number);
                }
                append(&mut ranks.entry(rank).or_insert_with(unknown(rank)).device, &mut events);
            }
        }
        let columns = match host {
            Host::Nothing => &[][..],
            Host::Slices => &HOST_COLUMNS[..HOST_COLUMNS.len() - 1],
            Host::Operands => &HOST_COLUMNS[..],
        };
        if !columns.is_empty() {
            let operands = host == Host::Operands;
            for part in profile.read_mapped(Table::Host, columns, filter, |rows| host_events(&rows, operands))? {
                let number = renumber(&part.texts, &mut texts);
                for (rank, mut events) in part.events {
                    for event in &mut events {
                        event.name = number(event.name);
                        event.inputs = event.inputs.map(&number);
                    }
                    append(&mut ranks.entry(rank).or_insert_with(unknown(rank)).host, &mut events);
                }
            }
        }
        // An import is sorted as it is; a recording is, segment by segment.
        for rank in ranks.values_mut() {
            let key = |event: &DeviceEvent| (event.track, event.ts, event.dur.saturating_neg());
            if !rank.device.is_sorted_by_key(key) {
                rank.device.sort_by_key(key);
            }
            let key = |event: &HostEvent| (event.track, event.ts, event.dur.saturating_neg());
            if !rank.host.is_sorted_by_key(key) {
                rank.host.sort_by_key(key);
            }
        }
        let ranks = ranks.into_values().collect();
        Ok(Run { texts, ranks, tracks: load_tracks(profile)?, devices: load_devices(profile)? })
    }

    /// The text with this number.
    pub fn text(&self, id: u32) -> &str {
        self.texts.get(id)
    }
}

impl RankInfo {
    fn unknown(rank: i64) -> Self {
        RankInfo {
            rank,
            source: String::new(),
            base_ns: 0,
            offset_ns: 0,
            residual_ns: None,
            matched_collectives: 0,
            resolution_ns: 1,
            world_size: None,
            host: None,
        }
    }
}

const DEVICE_COLUMNS: [&str; 16] = [
    "rank",
    "track",
    "device",
    "stream",
    "ts",
    "dur",
    "kind",
    "name",
    "correlation",
    "external_id",
    "bytes",
    "bandwidth",
    "group",
    "sequence",
    "dtype",
    "flag",
];

/// The last one only where operands are wanted.
const HOST_COLUMNS: [&str; 11] =
    ["rank", "track", "ts", "dur", "depth", "kind", "name", "correlation", "external_id", "flag", "inputs"];

/// The slices of a batch, by runs of equal ranks; texts are numbered as in `texts`.
struct Part<T> {
    events: Vec<(i64, Vec<T>)>,
    texts: Texts,
}

fn device_events(rows: &Batch) -> Part<DeviceEvent> {
    let kinds = lookup(rows, "kind", DeviceKind::of);
    let flags = lookup(rows, "flag", Flag::of);
    let mut classes: FxHashMap<(u32, DeviceKind), Class> = FxHashMap::default();
    let (name, group, dtype) = (rows.texts("name"), rows.texts("group"), rows.texts("dtype"));
    let int = |column: &str| rows.ints(column);
    let (track, device, stream) = (int("track"), int("device"), int("stream"));
    let (ts, dur, correlation, external) = (int("ts"), int("dur"), int("correlation"), int("external_id"));
    let (bytes, sequence, bandwidth) = (int("bytes"), int("sequence"), rows.floats("bandwidth"));
    let events = by_rank(int("rank"), |row| {
        let kind = kinds(row);
        DeviceEvent {
            ts: ts[row],
            dur: dur[row],
            name: name[row],
            kind,
            class: *classes.entry((name[row], kind)).or_insert_with(|| Class::of(kind, rows.text(name[row]))),
            flag: flags(row),
            track: track[row],
            device: device[row],
            stream: stream[row],
            correlation: some(correlation[row]),
            external_id: some(external[row]),
            bytes: some(bytes[row]),
            bandwidth: bandwidth[row],
            dtype: text(dtype[row]),
            group: text(group[row]),
            sequence: some(sequence[row]),
        }
    });
    Part { events, texts: rows.all_texts().clone() }
}

fn host_events(rows: &Batch, operands: bool) -> Part<HostEvent> {
    let kinds = lookup(rows, "kind", HostKind::of);
    let flags = lookup(rows, "flag", Flag::of);
    let name = rows.texts("name");
    let inputs = operands.then(|| rows.texts("inputs"));
    let int = |column: &str| rows.ints(column);
    let (track, depth, ts, dur) = (int("track"), int("depth"), int("ts"), int("dur"));
    let (correlation, external) = (int("correlation"), int("external_id"));
    let events = by_rank(int("rank"), |row| HostEvent {
        ts: ts[row],
        dur: dur[row],
        name: name[row],
        kind: kinds(row),
        flag: flags(row),
        depth: depth[row],
        track: track[row],
        correlation: some(correlation[row]),
        external_id: some(external[row]),
        inputs: inputs.and_then(|inputs| text(inputs[row])),
    });
    Part { events, texts: rows.all_texts().clone() }
}

fn by_rank<T>(ranks: &[i64], mut event: impl FnMut(usize) -> T) -> Vec<(i64, Vec<T>)> {
    let mut from = 0;
    let runs = ranks.chunk_by(|a, b| a == b).map(|run| {
        let events = (from..from + run.len()).map(&mut event).collect();
        from += run.len();
        (run[0], events)
    });
    runs.collect()
}

fn append<T>(all: &mut Vec<T>, more: &mut Vec<T>) {
    if all.is_empty() { std::mem::swap(all, more) } else { all.append(more) }
}

fn some(value: i64) -> Option<i64> {
    (value != NO_INT).then_some(value)
}

fn text(id: u32) -> Option<u32> {
    (id != NO_TEXT).then_some(id)
}

/// Numbers of a part's texts in `texts`.
fn renumber(part: &Texts, texts: &mut Texts) -> impl Fn(u32) -> u32 + use<> {
    let numbers: Vec<u32> = part.iter().map(|text| texts.intern(text)).collect();
    // A name is never missing; a hostile file's may be.
    let unnamed = texts.intern("");
    move |id| if id == NO_TEXT { unnamed } else { numbers[id as usize] }
}

/// What the words of a text column mean, by row.
fn lookup<'a, T: Copy + 'a>(rows: &'a Batch, column: &str, of: impl Fn(&str) -> T) -> impl Fn(usize) -> T + 'a {
    let ids = rows.texts(column);
    let none = of("");
    let mut meanings: Vec<Option<T>> = vec![None; rows.all_texts().len()];
    for &id in ids {
        if id != NO_TEXT && meanings[id as usize].is_none() {
            meanings[id as usize] = Some(of(rows.text(id)));
        }
    }
    move |row| if ids[row] == NO_TEXT { none } else { meanings[ids[row] as usize].unwrap_or(none) }
}

fn optional(rows: &Batch, id: u32) -> Option<String> {
    (id != NO_TEXT).then(|| rows.text(id).to_owned())
}

fn load_ranks(profile: &Profile) -> Result<Vec<RankInfo>, Error> {
    let columns = [
        "rank",
        "source",
        "base_ns",
        "offset_ns",
        "residual_ns",
        "matched_collectives",
        "resolution_ns",
        "world_size",
        "host",
    ];
    let rows = profile.read(Table::Ranks, &columns)?;
    let info = |row: usize| RankInfo {
        rank: rows.ints("rank")[row],
        source: rows.text(rows.texts("source")[row]).to_owned(),
        base_ns: rows.ints("base_ns")[row],
        offset_ns: rows.ints("offset_ns")[row],
        residual_ns: some(rows.ints("residual_ns")[row]),
        matched_collectives: rows.ints("matched_collectives")[row],
        resolution_ns: rows.ints("resolution_ns")[row],
        world_size: some(rows.ints("world_size")[row]),
        host: optional(&rows, rows.texts("host")[row]),
    };
    // A recording may state a rank again: the last word counts.
    let mut ranks: Vec<RankInfo> = Vec::new();
    for info in (0..rows.len()).map(info) {
        match ranks.iter_mut().find(|rank| rank.rank == info.rank) {
            Some(rank) => *rank = info,
            None => ranks.push(info),
        }
    }
    Ok(ranks)
}

fn load_tracks(profile: &Profile) -> Result<Vec<Track>, Error> {
    let columns = ["rank", "track", "kind", "process", "thread", "device", "stream", "process_name", "thread_name"];
    let rows = profile.read(Table::Tracks, &columns)?;
    let track = |row: usize| Track {
        track: rows.ints("track")[row],
        rank: rows.ints("rank")[row],
        kind: rows.text(rows.texts("kind")[row]).to_owned(),
        process: rows.text(rows.texts("process")[row]).to_owned(),
        thread: rows.text(rows.texts("thread")[row]).to_owned(),
        device: some(rows.ints("device")[row]),
        stream: some(rows.ints("stream")[row]),
        process_name: optional(&rows, rows.texts("process_name")[row]),
        thread_name: optional(&rows, rows.texts("thread_name")[row]),
    };
    Ok((0..rows.len()).map(track).collect())
}

fn load_devices(profile: &Profile) -> Result<Vec<Device>, Error> {
    let rows = profile.read(Table::Devices, &["rank", "device", "name"])?;
    let device = |row: usize| Device {
        rank: rows.ints("rank")[row],
        device: rows.ints("device")[row],
        name: rows.text(rows.texts("name")[row]).to_owned(),
    };
    Ok((0..rows.len()).map(device).collect())
}
