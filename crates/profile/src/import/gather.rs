//! Rows on their way from a source to the profile: gathered in memory, and put aside as sorted runs when there are many.
//!
//! An importer pushes typed rows in any order. A [`Gather`] keeps a chunk of them; [`Gather::spill`] sorts the chunk by track
//! and time and appends it to a temporary file. The merge then walks all runs track by track. So memory depends on the size
//! of a chunk, never on that of the file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustc_hash::FxHashMap;
use trace::schema::{DeviceRow, Row, Table};
use trace::{Batch, Texts};

use super::Error;
use super::diagnostics::{Anomaly, Diagnostics};
use super::runs::{Run, Spilled};

/// More tracks than this and the file is no profile.
const MAX_TRACKS: usize = 1 << 18;
/// Rows of all tables that a [`Gather`] keeps before it spills by itself.
const MAX_ROWS: usize = 1 << 17;
/// Bytes of texts that a [`Gather`] keeps before it spills by itself.
const MAX_TEXT_BYTES: usize = 24 << 20;

/// What a track is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrackKind {
    /// A host thread.
    Thread,
    /// A stream of a device.
    Stream,
    /// User annotations over a stream: a line of their own, since they need not nest with what they span.
    StreamAnnotations,
    /// Counters of a process.
    Counter,
    /// Anything else: asynchronous events, memory of a process.
    Other,
}

/// Tracks of one process and thread that are different lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lane {
    Main,
    Annotations,
    Counters,
}

impl TrackKind {
    /// A thread, a stream and anything else of the same ids are one line: a source may show an arrow's end on a stream before
    /// anything that says it is one.
    fn lane(self) -> Lane {
        match self {
            TrackKind::Thread | TrackKind::Stream | TrackKind::Other => Lane::Main,
            TrackKind::StreamAnnotations => Lane::Annotations,
            TrackKind::Counter => Lane::Counters,
        }
    }

    /// The word in the table `tracks`.
    pub fn word(self) -> &'static str {
        match self {
            TrackKind::Thread => "thread",
            TrackKind::Stream | TrackKind::StreamAnnotations => "stream",
            TrackKind::Counter => "counter",
            TrackKind::Other => "other",
        }
    }
}

/// Which line of the timeline.
#[derive(Clone, Copy, Debug)]
pub struct TrackKey<'a> {
    /// Which rank of the source: 0 where a file is of one rank.
    pub part: u32,
    /// What it is.
    pub kind: TrackKind,
    /// Process, as the source writes it.
    pub process: &'a str,
    /// Thread or stream, as the source writes it.
    pub thread: &'a str,
}

/// A track that some source has.
#[derive(Clone, Debug)]
pub(super) struct TrackInfo {
    pub source: u32,
    pub part: u32,
    pub kind: TrackKind,
    pub process: String,
    pub thread: String,
    pub device: Option<i64>,
    pub stream: Option<i64>,
}

/// What a source calls a process or a thread.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    /// Its name.
    pub name: Option<String>,
    /// Its label.
    pub label: Option<String>,
    /// Its order on a page.
    pub order: Option<i64>,
}

/// What sources call their processes and threads: by source, part, process, and thread (none for the process itself).
pub(super) type Names = FxHashMap<(u32, u32, String, Option<String>), Naming>;

/// A collective's end, by which clocks of ranks are aligned.
#[derive(Clone, Debug)]
pub(super) struct CollectiveEnd {
    pub part: u32,
    /// Process group and number, where the source says.
    pub identity: Option<(String, i64)>,
    /// Name of the kernel.
    pub name: String,
    pub start: i64,
    pub end: i64,
}

/// What all gathers of an import share.
pub(super) struct Shared {
    /// Where runs are put.
    dir: PathBuf,
    state: Mutex<SharedState>,
}

#[derive(Default)]
pub(super) struct SharedState {
    tracks: FxHashMap<(u32, u32, Lane, String, String), u32>,
    pub infos: Vec<TrackInfo>,
    pub names: Names,
    pub runs: Vec<Run>,
    pub diagnostics: FxHashMap<u32, Diagnostics>,
    pub collectives: FxHashMap<u32, Vec<CollectiveEnd>>,
}

impl Shared {
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), state: Mutex::default() }
    }

    pub fn into_state(self) -> SharedState {
        self.state.into_inner().expect("no panic while it is held")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SharedState> {
        self.state.lock().expect("no panic while it is held")
    }
}

/// Where a thread of an importer puts rows of one source.
///
/// The columns `rank` (put the part there, 0 where a file is of one rank), `track` (what [`Gather::track`] says), `depth` and
/// `flow` are filled or renumbered by the merge; `ts` is on the source's clock, without its base.
pub struct Gather<'s> {
    shared: &'s Shared,
    source: u32,
    /// One batch for every table that rows were pushed to.
    batches: Vec<Batch>,
    /// Begin and end events, paired by the merge.
    pending: Batch,
    rows: usize,
    /// How far the source had been read when the rows of the next run came: orders runs.
    order: u64,
    spilled: Option<Spilled>,
    runs: Vec<Run>,
    local: Texts,
    tracks: FxHashMap<(u32, TrackKind, u32, u32), u32>,
    collectives: Vec<CollectiveEnd>,
    /// What was odd in what this gather has seen.
    pub diagnostics: Diagnostics,
}

impl<'s> Gather<'s> {
    pub(super) fn new(shared: &'s Shared, source: u32) -> Self {
        Self {
            shared,
            source,
            batches: Vec::new(),
            pending: Batch::new(Table::Host),
            rows: 0,
            order: 0,
            spilled: None,
            runs: Vec::new(),
            local: Texts::new(),
            tracks: FxHashMap::default(),
            collectives: Vec::new(),
            diagnostics: Diagnostics::default(),
        }
    }

    /// The number of a track for the column `track`. `device` and `stream` matter for streams.
    pub fn track(&mut self, key: TrackKey<'_>, device: Option<i64>, stream: Option<i64>) -> Result<i64, Error> {
        let (process, thread) = (self.local.intern(key.process), self.local.intern(key.thread));
        let local = (key.part, key.kind, process, thread);
        if let Some(&slot) = self.tracks.get(&local) {
            return Ok(slot.into());
        }
        let mut state = self.shared.lock();
        let global = (self.source, key.part, key.kind.lane(), key.process.to_owned(), key.thread.to_owned());
        let slot = match state.tracks.get(&global) {
            Some(&slot) => {
                let info = &mut state.infos[slot as usize];
                // The more telling kind stays.
                let rank = |kind| match kind {
                    TrackKind::Stream => 0,
                    TrackKind::Thread => 1,
                    _ => 2,
                };
                if rank(key.kind) < rank(info.kind) {
                    (info.kind, info.device, info.stream) = (key.kind, device, stream);
                }
                slot
            }
            None => {
                let slot = state.infos.len() as u32;
                if state.infos.len() == MAX_TRACKS {
                    return Err(Error::TooMuch { what: "tracks (processes and threads)", limit: MAX_TRACKS });
                }
                state.infos.push(TrackInfo {
                    source: self.source,
                    part: key.part,
                    kind: key.kind,
                    process: key.process.to_owned(),
                    thread: key.thread.to_owned(),
                    device,
                    stream,
                });
                state.tracks.insert(global, slot);
                slot
            }
        };
        self.tracks.insert(local, slot);
        Ok(slot.into())
    }

    /// Says what a process (`thread` none) or a thread is called; later words add to earlier ones.
    pub fn name(&mut self, part: u32, process: &str, thread: Option<&str>, naming: Naming) -> Result<(), Error> {
        let mut state = self.shared.lock();
        if state.names.len() >= MAX_TRACKS {
            return Err(Error::TooMuch { what: "names of processes and threads", limit: MAX_TRACKS });
        }
        let known = state.names.entry((self.source, part, process.to_owned(), thread.map(str::to_owned))).or_default();
        known.name = naming.name.or(known.name.take());
        known.label = naming.label.or(known.label.take());
        known.order = naming.order.or(known.order);
        Ok(())
    }

    /// Appends a row.
    pub fn push<R: Row>(&mut self, row: &R) -> Result<(), Error> {
        self.make_room()?;
        self.batch(R::TABLE).push(row);
        Ok(())
    }

    /// Appends a slice of a device, and remembers it as a collective if it is one, for the alignment of ranks.
    pub fn push_device(&mut self, row: &DeviceRow<'_>) -> Result<(), Error> {
        let class = crate::Class::of(crate::DeviceKind::of(row.kind), row.name);
        // A long job has some hundred thousand collectives; the first of them are enough to align by.
        if class == crate::Class::Communication && row.flag.is_none() && self.collectives.len() < 1 << 17 {
            self.collectives.push(CollectiveEnd {
                part: row.rank as u32,
                identity: row.group.zip(row.sequence).map(|(group, number)| (group.to_owned(), number)),
                name: row.name.to_owned(),
                start: row.ts,
                end: row.ts.saturating_add(row.dur),
            });
        }
        self.push(row)
    }

    /// Appends a begin or an end (`flag` says which: `begin`, `end`); the merge pairs those of a track in the order of their
    /// times, and of the source where times are equal. Of an end, `name` (empty: any) and `args` are used.
    pub fn push_pending(&mut self, row: &trace::schema::HostRow<'_>) -> Result<(), Error> {
        self.make_room()?;
        self.pending.push(row);
        Ok(())
    }

    /// States where in the source the next rows come from, so that runs of several threads keep the source's order.
    pub fn set_order(&mut self, order: u64) {
        self.order = order;
    }

    fn batch(&mut self, table: Table) -> &mut Batch {
        let at = match self.batches.iter().position(|batch| batch.table() == table) {
            Some(at) => at,
            None => {
                self.batches.push(Batch::new(table));
                self.batches.len() - 1
            }
        };
        &mut self.batches[at]
    }

    fn make_room(&mut self) -> Result<(), Error> {
        self.rows += 1;
        if self.rows.is_multiple_of(1024) {
            let bytes: usize = self.batches.iter().map(|batch| batch.all_texts().bytes()).sum();
            if self.rows >= MAX_ROWS || bytes + self.pending.all_texts().bytes() >= MAX_TEXT_BYTES {
                self.spill()?;
            }
        }
        if self.local.bytes() > MAX_TEXT_BYTES {
            return Err(Error::TooMuch { what: "bytes of process and thread names", limit: MAX_TEXT_BYTES });
        }
        Ok(())
    }

    /// Sorts what is kept and puts it aside as a run per table.
    pub fn spill(&mut self) -> Result<(), Error> {
        self.rows = 0;
        let mut batches = std::mem::take(&mut self.batches);
        for batch in &mut batches {
            self.spill_batch(batch, false)?;
            batch.clear();
        }
        self.batches = batches;
        let mut pending = std::mem::replace(&mut self.pending, Batch::new(Table::Host));
        self.spill_batch(&pending, true)?;
        pending.clear();
        self.pending = pending;
        Ok(())
    }

    fn spill_batch(&mut self, batch: &Batch, pending: bool) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let (track, ts) = (batch.ints("track"), batch.ints("ts"));
        let mut order: Vec<u32> = (0..batch.len() as u32).collect();
        match batch.table() {
            // Pairing needs the order of the source among equal times; everything else, longer slices first.
            Table::Host | Table::Device if !pending => {
                let dur = batch.ints("dur");
                order.sort_by_key(|&row| {
                    let row = row as usize;
                    (track[row], ts[row], std::cmp::Reverse(dur[row]))
                });
            }
            _ => order.sort_by_key(|&row| (track[row as usize], ts[row as usize])),
        }
        let mut tracks: Vec<(u32, Range<u32>)> = Vec::new();
        for (at, &row) in order.iter().enumerate() {
            let slot = track[row as usize] as u32;
            match tracks.last_mut() {
                Some((last, range)) if *last == slot => range.end += 1,
                _ => tracks.push((slot, at as u32..at as u32 + 1)),
            }
        }

        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(Spilled::create(&self.shared.dir)?),
        };
        let stored = spilled.store(batch, &order)?;
        self.runs.push(Run { pending, source: self.source, order: self.order, tracks, ..stored });
        Ok(())
    }

    /// Puts everything aside and hands it over.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.spill()?;
        if let Some(spilled) = self.spilled.take() {
            spilled.finish()?;
        }
        let mut state = self.shared.lock();
        state.runs.append(&mut self.runs);
        state.collectives.entry(self.source).or_default().append(&mut self.collectives);
        state.diagnostics.entry(self.source).or_default().merge(std::mem::take(&mut self.diagnostics));
        Ok(())
    }

    /// Counts an anomaly; short for `diagnostics.count`.
    pub fn odd<S: AsRef<str>>(&mut self, anomaly: Anomaly, example: impl FnOnce() -> S, at: impl Into<Option<u64>>) {
        self.diagnostics.count(anomaly, example, at);
    }
}
