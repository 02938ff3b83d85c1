//! Runs to tables: track by track, sorted, with the rows and arrows of the timeline worked out on the way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::path::PathBuf;

use memmap2::Mmap;
use rustc_hash::FxHashMap;
use trace::schema::{HostRow, InstantRow, Kind, Table};
use trace::{Batch, Column, NO_INT, NO_TEXT, SegmentWriter, Texts, Writer};

use super::Error;
use super::diagnostics::Anomaly;
use super::gather::{Gather, OpenRun, Run, Values};

/// Rows that are written at a time: one row group.
const BATCH: usize = 1 << 17;

/// The temporary files of all runs, mapped.
pub(super) struct Spills {
    maps: FxHashMap<PathBuf, Mmap>,
}

impl Spills {
    pub fn open(runs: &[Run]) -> Result<Self, Error> {
        let mut maps = FxHashMap::default();
        for run in runs {
            if !maps.contains_key(&run.path) {
                let file = File::open(&run.path).map_err(Error::io(&run.path))?;
                // SAFETY: the file lies in a private directory of this import, which has written it and changes it no more.
                let map = unsafe { Mmap::map(&file) }.map_err(Error::io(&run.path))?;
                maps.insert(run.path.clone(), map);
            }
        }
        Ok(Self { maps })
    }

    pub fn runs<'m>(&'m self, runs: &'m [Run], table: Table, pending: bool) -> Vec<OpenRun<'m>> {
        let mut open: Vec<OpenRun<'m>> = runs
            .iter()
            .filter(|run| run.table == table && run.pending == pending && run.rows > 0)
            .map(|run| OpenRun::new(run, &self.maps[&run.path]))
            .collect();
        open.sort_by_key(|open| (open.run.source, open.run.order));
        open
    }
}

/// What the merge knows of a track.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The number by which rows of runs name it.
    pub slot: u32,
    /// Its number in the profile.
    pub track: i64,
    pub rank: i64,
    /// Added to its times.
    pub base_ns: i64,
}

/// A row of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    run: u32,
    row: u32,
}

/// The rows of one track in order.
struct TrackRows<'r, 'm> {
    sources: Vec<TrackRun<'r, 'm>>,
    /// Next key, place in `sources`: earliest first, longest first, then in the order of the source.
    heap: BinaryHeap<Reverse<(i64, Reverse<i64>, u32)>>,
}

struct TrackRun<'r, 'm> {
    run: u32,
    at: u32,
    end: u32,
    ts: &'r Values<'m, i64>,
    dur: Option<&'r Values<'m, i64>>,
}

impl TrackRun<'_, '_> {
    fn key(&self) -> Option<(i64, Reverse<i64>)> {
        let row = self.at as usize;
        (self.at < self.end).then(|| (self.ts.get(row), Reverse(self.dur.map_or(0, |dur| dur.get(row)))))
    }
}

impl Iterator for TrackRows<'_, '_> {
    type Item = (Cursor, i64, i64);

    fn next(&mut self) -> Option<Self::Item> {
        let mut top = self.heap.peek_mut()?;
        let Reverse((ts, Reverse(dur), place)) = *top;
        let source = &mut self.sources[place as usize];
        let cursor = Cursor { run: source.run, row: source.at };
        source.at += 1;
        match source.key() {
            Some((ts, dur)) => *top = Reverse((ts, dur, place)),
            None => {
                std::collections::binary_heap::PeekMut::pop(top);
            }
        }
        Some((cursor, ts, dur))
    }
}

/// All runs of a table, by track.
struct TableRuns<'m> {
    runs: Vec<OpenRun<'m>>,
    ts: Vec<Values<'m, i64>>,
    dur: Option<Vec<Values<'m, i64>>>,
    /// Runs and rows of each slot.
    tracks: FxHashMap<u32, Vec<(u32, u32, u32)>>,
}

impl<'m> TableRuns<'m> {
    fn new(runs: Vec<OpenRun<'m>>, table: Table, by_duration: bool) -> Self {
        let column = |name: &str| table.column(name);
        let ts = runs.iter().map(|run| run.ints(column("ts").expect("a table of events has times"))).collect();
        let dur = column("dur").filter(|_| by_duration).map(|dur| runs.iter().map(|run| run.ints(dur)).collect());
        let mut tracks: FxHashMap<u32, Vec<(u32, u32, u32)>> = FxHashMap::default();
        for (number, open) in runs.iter().enumerate() {
            for (slot, rows) in &open.run.tracks {
                tracks.entry(*slot).or_default().push((number as u32, rows.start, rows.end));
            }
        }
        Self { runs, ts, dur, tracks }
    }

    /// How many rows a track has, its earliest start and its latest.
    fn extent(&self, slot: u32) -> (u64, i64, i64) {
        let mut extent = (0, i64::MAX, i64::MIN);
        for &(run, at, end) in self.tracks.get(&slot).into_iter().flatten() {
            let ts = &self.ts[run as usize];
            extent.0 += u64::from(end - at);
            extent.1 = extent.1.min(ts.get(at as usize));
            extent.2 = extent.2.max(ts.get(end as usize - 1));
        }
        extent
    }

    fn rows(&self, slot: u32) -> TrackRows<'_, 'm> {
        let mut rows = TrackRows { sources: Vec::new(), heap: BinaryHeap::new() };
        for &(run, at, end) in self.tracks.get(&slot).into_iter().flatten() {
            let place = run as usize;
            let dur = self.dur.as_ref().map(|dur| &dur[place]);
            rows.sources.push(TrackRun { run, at, end, ts: &self.ts[place], dur });
        }
        for (place, source) in rows.sources.iter().enumerate() {
            if let Some((ts, dur)) = source.key() {
                rows.heap.push(Reverse((ts, dur, place as u32)));
            }
        }
        rows
    }
}

/// Rows on their way into a segment.
struct Output<'m> {
    table: Table,
    runs: &'m [OpenRun<'m>],
    segment: SegmentWriter,
    cursors: Vec<Cursor>,
    /// Columns that the merge fills.
    rank: Vec<i64>,
    track: Vec<i64>,
    ts: Vec<i64>,
    depth: Vec<i64>,
    flow: Vec<i64>,
    implied: Vec<i64>,
}

/// `implied`: the external id repeats the correlation.
const SAME_AS_CORRELATION: i64 = 1;
/// `implied`: the Python parent is the frame around it.
const ENCLOSING_FRAME: i64 = 2;

/// What the merge works out for a row.
struct Worked {
    ts: i64,
    depth: i64,
    flow: i64,
    implied: i64,
}

impl<'m> Output<'m> {
    fn new(table: Table, runs: &'m [OpenRun<'m>]) -> Self {
        Self {
            table,
            runs,
            segment: SegmentWriter::new(table),
            cursors: Vec::new(),
            rank: Vec::new(),
            track: Vec::new(),
            ts: Vec::new(),
            depth: Vec::new(),
            flow: Vec::new(),
            implied: Vec::new(),
        }
    }

    fn push(&mut self, cursor: Cursor, place: Place, worked: Worked, writer: &mut Writer) -> Result<(), Error> {
        self.cursors.push(cursor);
        self.rank.push(place.rank);
        self.track.push(place.track);
        self.ts.push(worked.ts.saturating_add(place.base_ns));
        self.depth.push(worked.depth);
        self.flow.push(worked.flow);
        self.implied.push(worked.implied);
        if self.cursors.len() == BATCH { self.flush(writer) } else { Ok(()) }
    }

    fn point(&mut self, cursor: Cursor, place: Place, ts: i64, writer: &mut Writer) -> Result<(), Error> {
        self.push(cursor, place, Worked { ts, depth: 0, flow: NO_INT, implied: NO_INT }, writer)
    }

    fn flush(&mut self, writer: &mut Writer) -> Result<(), Error> {
        if self.cursors.is_empty() {
            return Ok(());
        }
        let implied = std::mem::take(&mut self.implied);
        let mut texts = Texts::new();
        let mut known: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut columns = Vec::new();
        for (at, spec) in self.table.columns().iter().enumerate() {
            let column = match spec.name {
                "rank" => Column::Int(std::mem::take(&mut self.rank)),
                "track" => Column::Int(std::mem::take(&mut self.track)),
                "ts" => Column::Int(std::mem::take(&mut self.ts)),
                "depth" => Column::Int(std::mem::take(&mut self.depth)),
                "flow" => Column::Int(std::mem::take(&mut self.flow)),
                "implied" => Column::Int(implied.clone()),
                name => match spec.kind {
                    Kind::Int => {
                        let values: Vec<_> = self.runs.iter().map(|run| run.ints(at)).collect();
                        let mut column: Vec<i64> =
                            self.cursors.iter().map(|c| values[c.run as usize].get(c.row as usize)).collect();
                        let bit = match name {
                            "external_id" => SAME_AS_CORRELATION,
                            "python_parent" => ENCLOSING_FRAME,
                            _ => 0,
                        };
                        if bit != 0 {
                            for (value, implied) in column.iter_mut().zip(&implied) {
                                if *implied != NO_INT && implied & bit != 0 {
                                    *value = NO_INT;
                                }
                            }
                        }
                        Column::Int(column)
                    }
                    Kind::Float => {
                        let values: Vec<_> = self.runs.iter().map(|run| run.floats(at)).collect();
                        Column::Float(self.cursors.iter().map(|c| values[c.run as usize].get(c.row as usize)).collect())
                    }
                    Kind::Text => {
                        let values: Vec<_> = self.runs.iter().map(|run| run.texts(at)).collect();
                        let number = |c: &Cursor| {
                            let id = values[c.run as usize].get(c.row as usize);
                            if id == NO_TEXT {
                                return NO_TEXT;
                            }
                            *known
                                .entry((c.run, id))
                                .or_insert_with(|| texts.intern(self.runs[c.run as usize].text(id)))
                        };
                        Column::Text(self.cursors.iter().map(number).collect())
                    }
                },
            };
            columns.push(column);
        }
        let batch = Batch::of_all(self.table, columns, texts);
        self.cursors.clear();
        Ok(self.segment.append(&batch, writer)?)
    }

    fn close(mut self, writer: &mut Writer) -> Result<(), Error> {
        self.flush(writer)?;
        Ok(self.segment.close(writer)?)
    }
}

/// Open slices of a track: gives each new one the lowest row above all that are still open.
#[derive(Default)]
pub(super) struct Stack {
    ends: Vec<i64>,
}

impl Stack {
    /// The row of a slice, and whether it ends after one that began before it and is still open.
    pub fn push(&mut self, ts: i64, dur: i64) -> (i64, bool) {
        while self.ends.last().is_some_and(|end| *end <= ts) {
            self.ends.pop();
        }
        let end = ts.saturating_add(dur.max(0));
        let overlaps = self.ends.last().is_some_and(|open| *open < end);
        self.ends.push(end);
        (self.ends.len() as i64 - 1, overlaps)
    }
}

/// Hears of every slice, track by track, in order.
pub(super) trait Listener {
    /// A track of so many slices begins; it starts at `first` and its last slice at `last`.
    fn track(&mut self, place: &Place, slices: u64, first: i64, last: i64, writer: &mut Writer) -> Result<(), Error>;
    fn slice(&mut self, place: &Place, slice: &Slice<'_>) -> Result<(), Error>;
}

/// A slice as the merge sees it.
pub(super) struct Slice<'a> {
    pub ts: i64,
    pub dur: i64,
    pub depth: i64,
    pub overlaps: bool,
    pub flag: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
    pub correlation: Option<i64>,
}

/// Merges the slices of a table, works out rows, takes the arrows' ends that a slice explains, and tells `listener` of each.
pub(super) fn slices(
    table: Table,
    spills: &Spills,
    runs: &[Run],
    places: &[Place],
    arrows: &mut Arrows<'_>,
    writer: &mut Writer,
    listener: &mut dyn Listener,
) -> Result<(), Error> {
    let open = spills.runs(runs, table, false);
    if open.is_empty() {
        return Ok(());
    }
    let index = |name: &str| table.column(name).expect("a table of slices");
    let correlation: Vec<_> = open.iter().map(|run| run.ints(index("correlation"))).collect();
    let ints = |name: &str| -> Vec<_> { open.iter().map(|run| run.ints(index(name))).collect() };
    let external_id = ints("external_id");
    let python = table.column("python_id").map(|_| (ints("python_id"), ints("python_parent")));
    let texts = |name: &str| -> Vec<_> { open.iter().map(|run| run.texts(index(name))).collect() };
    let (flag, kind, name) = (texts("flag"), texts("kind"), texts("name"));
    let table_runs = TableRuns::new(open, table, true);
    let text = |values: &[Values<'_, u32>], cursor: Cursor| -> &str {
        let id = values[cursor.run as usize].get(cursor.row as usize);
        if id == NO_TEXT { "" } else { table_runs.runs[cursor.run as usize].text(id) }
    };
    let mut output = Output::new(table, &table_runs.runs);
    for place in places {
        let mut stack = Stack::default();
        // Python ids of the open slices, from the bottom.
        let mut frames: Vec<i64> = Vec::new();
        let (slices, first, last) = table_runs.extent(place.slot);
        if slices == 0 {
            continue;
        }
        let base = place.base_ns;
        listener.track(place, slices, first.saturating_add(base), last.saturating_add(base), writer)?;
        for (cursor, ts, dur) in table_runs.rows(place.slot) {
            let correlation = correlation[cursor.run as usize].get(cursor.row as usize);
            let (depth, overlaps) = stack.push(ts, dur);
            let flow = if correlation == NO_INT { NO_INT } else { arrows.take(place.slot, ts, correlation) };
            let external = external_id[cursor.run as usize].get(cursor.row as usize);
            let mut implied = 0;
            if external != NO_INT && external == correlation {
                implied |= SAME_AS_CORRELATION;
            }
            if let Some((id, parent)) = &python {
                let id = id[cursor.run as usize].get(cursor.row as usize);
                let parent = parent[cursor.run as usize].get(cursor.row as usize);
                frames.truncate(depth as usize);
                let around = frames.iter().rev().find(|frame| **frame != NO_INT);
                if parent != NO_INT && around == Some(&parent) {
                    implied |= ENCLOSING_FRAME;
                }
                frames.push(id);
            }
            let implied = if implied == 0 { NO_INT } else { implied };
            output.push(cursor, *place, Worked { ts, depth, flow, implied }, writer)?;
            listener.slice(
                place,
                &Slice {
                    ts: ts.saturating_add(place.base_ns),
                    dur,
                    depth,
                    overlaps,
                    flag: text(&flag, cursor),
                    kind: text(&kind, cursor),
                    name: text(&name, cursor),
                    correlation: (correlation != NO_INT).then_some(correlation),
                },
            )?;
        }
    }
    output.close(writer)
}

/// Merges a table without durations.
pub(super) fn points(
    table: Table,
    spills: &Spills,
    runs: &[Run],
    places: &[Place],
    writer: &mut Writer,
) -> Result<(), Error> {
    let open = spills.runs(runs, table, false);
    if open.is_empty() {
        return Ok(());
    }
    let table_runs = TableRuns::new(open, table, false);
    let mut output = Output::new(table, &table_runs.runs);
    for place in places {
        for (cursor, ts, _) in table_runs.rows(place.slot) {
            output.point(cursor, *place, ts, writer)?;
        }
    }
    output.close(writer)
}

/// Ends of arrows, by track and time, and which of them slices explain.
pub(super) struct Arrows<'m> {
    runs: Vec<OpenRun<'m>>,
    ts: Vec<Values<'m, i64>>,
    tracks: FxHashMap<u32, TrackArrows>,
    id: Vec<Values<'m, i64>>,
    phase: Vec<Values<'m, u32>>,
    category: Vec<Values<'m, u32>>,
    /// Explained by a slice: by run, a bit per row.
    explained: Vec<Vec<u64>>,
}

/// Where each run of a track stands: run, next row, end.
type TrackArrows = Vec<(u32, u32, u32)>;

/// `flow`: the category of the arrows, over the bits of their ends.
const CATEGORIES: [(&str, i64); 3] = [("ac2g", 0), ("async", 4), ("async_cpu_to_gpu", 8)];

impl<'m> Arrows<'m> {
    pub fn new(spills: &'m Spills, runs: &'m [Run]) -> Self {
        let table = Table::Flows;
        let runs = spills.runs(runs, table, false);
        let ints = |name: &str| -> Vec<_> {
            runs.iter().map(|run| run.ints(table.column(name).expect("a column of flows"))).collect()
        };
        let texts = |name: &str| -> Vec<_> {
            runs.iter().map(|run| run.texts(table.column(name).expect("a column of flows"))).collect()
        };
        let mut tracks: FxHashMap<u32, TrackArrows> = FxHashMap::default();
        for (number, open) in runs.iter().enumerate() {
            for (slot, rows) in &open.run.tracks {
                tracks.entry(*slot).or_default().push((number as u32, rows.start, rows.end));
            }
        }
        let explained = runs.iter().map(|open| vec![0u64; open.run.rows.div_ceil(64)]).collect();
        Self {
            ts: ints("ts"),
            id: ints("id"),
            phase: texts("phase"),
            category: texts("category"),
            tracks,
            explained,
            runs,
        }
    }

    /// The `flow` of a slice: launch arrows of its correlation that end at its start. Slices come in order of time.
    fn take(&mut self, slot: u32, ts: i64, correlation: i64) -> i64 {
        let Some(track) = self.tracks.get_mut(&slot) else { return NO_INT };
        let mut flow = 0;
        for (run, next, end) in track {
            let number = *run as usize;
            while *next < *end && self.ts[number].get(*next as usize) < ts {
                *next += 1;
            }
            // Several slices may start at this time: look at all ends here and pass none.
            let mut row = *next;
            while row < *end && self.ts[number].get(row as usize) == ts {
                let place = row as usize;
                row += 1;
                if self.id[number].get(place) != correlation
                    || self.explained[number][place / 64] >> (place % 64) & 1 == 1
                {
                    continue;
                }
                let word = |id: u32| if id == NO_TEXT { "" } else { self.runs[number].text(id) };
                let bit = match word(self.phase[number].get(place)) {
                    "s" => 1,
                    "f" => 2,
                    _ => continue,
                };
                let category = word(self.category[number].get(place));
                let Some((_, category)) = CATEGORIES.iter().find(|(name, _)| *name == category) else { continue };
                if flow & bit == 0 && (flow == 0 || flow & !3 == *category) {
                    flow |= bit | category;
                    self.explained[number][place / 64] |= 1 << (place % 64);
                }
            }
        }
        if flow == 0 { NO_INT } else { flow }
    }

    /// Writes the ends that no slice explains.
    pub fn write_rest(self, places: &[Place], writer: &mut Writer) -> Result<(), Error> {
        let rows: usize = self.runs.iter().map(|open| open.run.rows).sum();
        let explained = self.explained;
        if explained.iter().flatten().map(|bits| bits.count_ones() as usize).sum::<usize>() == rows {
            return Ok(());
        }
        let table_runs = TableRuns::new(self.runs, Table::Flows, false);
        let mut output = Output::new(Table::Flows, &table_runs.runs);
        for place in places {
            for (cursor, ts, _) in table_runs.rows(place.slot) {
                let row = cursor.row as usize;
                if explained[cursor.run as usize][row / 64] >> (row % 64) & 1 == 0 {
                    output.point(cursor, *place, ts, writer)?;
                }
            }
        }
        output.close(writer)
    }
}

/// Pairs begins with ends, track by track in the order of time, and pushes the slices to `gather`.
pub(super) fn pair(spills: &Spills, runs: &[Run], places: &[Place], gather: &mut Gather<'_>) -> Result<(), Error> {
    let table = Table::Host;
    let open = spills.runs(runs, table, true);
    if open.is_empty() {
        return Ok(());
    }
    let index = |name: &str| table.column(name).expect("a column of host slices");
    let table_runs = TableRuns::new(open, table, false);
    let runs = &table_runs.runs;
    let texts = |name: &str| -> Vec<_> { runs.iter().map(|run| run.texts(index(name))).collect() };
    let (flag, name, kind, category, args, key) =
        (texts("flag"), texts("name"), texts("kind"), texts("category"), texts("args"), texts("inputs"));
    let ints: Vec<Vec<Values<'_, i64>>> = [
        "correlation",
        "external_id",
        "sequence",
        "forward_thread",
        "event_index",
        "record_function",
        "python_id",
        "python_parent",
        "python_module",
    ]
    .iter()
    .map(|name| runs.iter().map(|run| run.ints(index(name))).collect())
    .collect();
    let text = |values: &[Values<'_, u32>], cursor: Cursor| -> Option<&str> {
        let id = values[cursor.run as usize].get(cursor.row as usize);
        (id != NO_TEXT).then(|| runs[cursor.run as usize].text(id))
    };
    for place in places {
        // Begins that wait for their end, of each key; a thread's have none.
        let mut waiting: FxHashMap<Option<&str>, Vec<(Cursor, i64)>> = FxHashMap::default();
        let mut last = i64::MIN;
        let emit = |gather: &mut Gather<'_>, begin: Cursor, ts: i64, end: i64, flag, end_args: Option<&str>| {
            let int = |column: usize| {
                let value = ints[column][begin.run as usize].get(begin.row as usize);
                (value != NO_INT).then_some(value)
            };
            let joined = join(text(&args, begin), end_args, text(&key, begin));
            gather.push(&HostRow {
                rank: 0,
                track: place.slot.into(),
                ts,
                dur: end.saturating_sub(ts),
                depth: 0,
                kind: text(&kind, begin).unwrap_or("other"),
                category: text(&category, begin),
                name: text(&name, begin).unwrap_or_default(),
                correlation: int(0),
                external_id: int(1),
                sequence: int(2),
                forward_thread: int(3),
                event_index: int(4),
                record_function: int(5),
                python_id: int(6),
                python_parent: int(7),
                python_module: int(8),
                flow: None,
                implied: None,
                flag,
                inputs: None,
                args: joined.as_deref(),
            })
        };
        for (cursor, ts, _) in table_runs.rows(place.slot) {
            last = last.max(ts);
            let open = waiting.entry(text(&key, cursor)).or_default();
            if text(&flag, cursor) == Some("begin") {
                open.push((cursor, ts));
                continue;
            }
            // The innermost begin of the end's name; of any name where it states none.
            let wanted = text(&name, cursor).unwrap_or_default();
            let found = open.iter().rposition(|(begin, _)| wanted.is_empty() || text(&name, *begin) == Some(wanted));
            match found {
                Some(at) => {
                    let (begin, started) = open.remove(at);
                    emit(gather, begin, started, ts, None, text(&args, cursor))?;
                }
                None => {
                    gather.odd(Anomaly::UnmatchedEnd, || wanted, None);
                    gather.push(&InstantRow {
                        rank: 0,
                        track: place.slot.into(),
                        ts,
                        name: wanted,
                        category: text(&category, cursor),
                        scope: Some("thread"),
                        args: text(&args, cursor),
                    })?;
                }
            }
        }
        let mut unfinished: Vec<(Cursor, i64)> = waiting.into_values().flatten().collect();
        unfinished.sort_by_key(|(cursor, ts)| (*ts, *cursor));
        for (begin, ts) in unfinished {
            gather.odd(Anomaly::UnmatchedBegin, || text(&name, begin).unwrap_or_default(), None);
            emit(gather, begin, ts, last, Some("unfinished"), None)?;
        }
    }
    Ok(())
}

/// One object of the arguments of both ends, and of the id they were paired by.
fn join(begin: Option<&str>, end: Option<&str>, id: Option<&str>) -> Option<String> {
    let id = id.map(|id| format!("{{\"id\":{}}}", serde_json::Value::from(id)));
    let parts: Vec<&str> = [begin, end, id.as_deref()].into_iter().flatten().collect();
    match parts.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        many => {
            // They are objects: the importer wrote them.
            let fields: Vec<&str> = many
                .iter()
                .map(|object| {
                    object.strip_prefix('{').unwrap_or(object).trim_end().strip_suffix('}').unwrap_or(object).trim()
                })
                .filter(|fields| !fields.is_empty())
                .collect();
            Some(format!("{{{}}}", fields.join(",")))
        }
    }
}
