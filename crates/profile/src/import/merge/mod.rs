//! Runs to tables: track by track, sorted, with the rows and arrows of the timeline worked out on the way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::path::PathBuf;

use memmap2::Mmap;
use rustc_hash::FxHashMap;
use trace::schema::Table;
use trace::{NO_TEXT, Writer};

use super::Error;
use super::runs::{OpenRun, Run, Values};

mod arrows;
mod output;
mod pair;
mod slices;

pub(super) use arrows::Arrows;
use output::Output;
pub(super) use pair::pair;
pub(super) use slices::{Listener, Slice, slices};

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

/// A column of integers in all runs.
struct Ints<'m>(Vec<Values<'m, i64>>);

impl Ints<'_> {
    fn get(&self, cursor: Cursor) -> i64 {
        self.0[cursor.run as usize].get(cursor.row as usize)
    }
}

/// All runs of a table, by track.
struct TableRuns<'m> {
    table: Table,
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
        Self { table, runs, ts, dur, tracks }
    }

    fn ints(&self, column: &str) -> Ints<'m> {
        let at = self.table.column(column).expect("a column of the table");
        Ints(self.runs.iter().map(|run| run.ints(at)).collect())
    }

    fn texts(&self, column: &str) -> Vec<Values<'m, u32>> {
        let at = self.table.column(column).expect("a column of the table");
        self.runs.iter().map(|run| run.texts(at)).collect()
    }

    /// The text of a column in a row.
    fn text(&self, column: &[Values<'_, u32>], cursor: Cursor) -> Option<&'m str> {
        let id = column[cursor.run as usize].get(cursor.row as usize);
        (id != NO_TEXT).then(|| self.runs[cursor.run as usize].text(id))
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
