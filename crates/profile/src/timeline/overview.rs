//! Summaries of tracks with many slices, written once at import and read for far zoom.

use trace::Batch;
use trace::schema::OverviewRow;

use super::group::{Grouper, Item};

/// Buckets of the coarsest level over the track's span. Each further candidate has twice as many.
const FIRST_BUCKETS: u64 = 2048;
/// More candidates than this serve no zoom that the slices themselves do not serve as well.
const CANDIDATES: usize = 14;
/// Of the candidates, the finest that is small enough is kept, and every second coarser one.
const STEP: usize = 2;
/// A level is small enough when it has this many times fewer rows than the track has slices; the coarsest may have half as many.
const SAVING: u64 = 16;
/// Rows that a candidate may have while it is yet to show what it saves, and most rows at all: they are kept in memory until the
/// track is read.
const TRIAL_ROWS: u64 = 1 << 14;
const MAX_ROWS: u64 = 1 << 18;

/// Builds the rows of the `overview` table for one track.
///
/// ```
/// use profile::timeline::OverviewBuilder;
/// use trace::{Batch, schema::Table};
///
/// let (first, last, slices) = (0, 10_000_000, 100_000);
/// let mut overview = OverviewBuilder::new(3, slices, first, last);
/// for i in 0..slices as i64 {
///     overview.push(i * 100, 50, 0, 0, Some(i));
/// }
/// let mut rows = Batch::new(Table::Overview);
/// overview.finish(|_name| "kernel", &mut rows);
/// assert!(rows.len() < 20_000);
/// ```
pub struct OverviewBuilder {
    track: i64,
    /// Slices of the track.
    slices: u64,
    /// Slices taken so far.
    seen: u64,
    /// From the coarsest to the finest; one that saves too little is dropped with all finer ones.
    levels: Vec<Grouper>,
}

impl OverviewBuilder {
    /// Tracks with no more slices than this need no summary.
    pub const MIN_SLICES: u64 = 1 << 18;

    /// For a track with this many slices from `first_ns` to `last_ns`. With few slices nothing is built.
    pub fn new(track: i64, slices: u64, first_ns: i64, last_ns: i64) -> Self {
        let mut builder = Self::of_any_size(track, slices, first_ns, last_ns);
        if slices <= Self::MIN_SLICES {
            builder.levels.clear();
        }
        builder
    }

    pub(super) fn of_any_size(track: i64, slices: u64, first_ns: i64, last_ns: i64) -> Self {
        let span = last_ns.saturating_sub(first_ns).max(1) as u64;
        let widest = (span / FIRST_BUCKETS).max(1).next_power_of_two().min(1 << 62) as i64;
        let widths = (0..CANDIDATES).map(|level| widest >> level).take_while(|&width| width > 1);
        Self { track, slices, seen: 0, levels: widths.map(Grouper::new).collect() }
    }

    /// Takes a slice, ns; those of one row come in the order of their starts. `name` is a number that `finish` turns into a text.
    pub fn push(&mut self, ts: i64, dur: i64, depth: i64, name: u32, correlation: Option<i64>) {
        let item = Item::slice(ts, dur, depth, name, correlation);
        self.seen += 1;
        let mut keep = self.levels.len();
        for (at, level) in self.levels.iter_mut().enumerate() {
            level.push(item);
            // What it will save at the end is not known yet; twice the rows that it may have by now are too many.
            let trial = TRIAL_ROWS.max(self.seen / saving(at) * 2).min(MAX_ROWS);
            if level.len() as u64 > trial {
                keep = keep.min(at);
            }
        }
        self.levels.truncate(keep);
    }

    /// Appends the rows, level by level from the coarsest, each by start.
    pub fn finish<'t>(mut self, text: impl Fn(u32) -> &'t str, rows: &mut Batch) {
        let slices = self.slices.max(self.seen);
        let small = |(at, level): (usize, &Grouper)| level.len_at_end() as u64 <= (slices / saving(at)).min(MAX_ROWS);
        let kept = self.levels.iter().enumerate().take_while(|level| small(*level)).count();
        self.levels.truncate(kept);
        for (at, level) in self.levels.into_iter().enumerate() {
            if (kept - 1 - at) % STEP != 0 {
                continue;
            }
            let width = level.width();
            for item in level.finish() {
                rows.push(&OverviewRow {
                    track: self.track,
                    depth: item.depth,
                    width,
                    ts: item.ts,
                    dur: item.dur,
                    idle: item.dur.max(0).saturating_sub(item.busy),
                    count: item.count,
                    name: text(item.name),
                    correlation: item.correlation,
                });
            }
        }
    }
}

fn saving(level: usize) -> u64 {
    if level == 0 { 2 } else { SAVING }
}
