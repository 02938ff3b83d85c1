//! Launch arrows: the ends that slices imply, and those that are rows of their own.

use rustc_hash::FxHashMap;
use trace::schema::{Table, flow};
use trace::{NO_INT, NO_TEXT, Writer};

use super::{Output, Place, Spills, TableRuns};
use crate::import::Error;
use crate::import::runs::{OpenRun, Run, Values};

/// Ends of arrows, by track and time, and which of them slices explain.
pub(in crate::import) struct Arrows<'m> {
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

/// Ends at one time on one track that are looked at for a slice: those beyond stay in the table `flows`. Otherwise a file with all
/// times equal would take quadratic time.
const MOST_AT_ONCE: u32 = 4096;

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
    pub(super) fn take(&mut self, slot: u32, ts: i64, correlation: i64) -> i64 {
        let Some(track) = self.tracks.get_mut(&slot) else { return NO_INT };
        let mut ends = 0;
        for (run, next, end) in track {
            let number = *run as usize;
            while *next < *end && self.ts[number].get(*next as usize) < ts {
                *next += 1;
            }
            // Several slices may start at this time: look at all ends here and pass none.
            let mut row = *next;
            while row < (*end).min(next.saturating_add(MOST_AT_ONCE)) && self.ts[number].get(row as usize) == ts {
                let place = row as usize;
                row += 1;
                if self.id[number].get(place) != correlation
                    || self.explained[number][place / 64] >> (place % 64) & 1 == 1
                {
                    continue;
                }
                let word = |id: u32| if id == NO_TEXT { "" } else { self.runs[number].text(id) };
                let bit = match word(self.phase[number].get(place)) {
                    "s" => flow::STARTS,
                    "f" => flow::ENDS,
                    _ => continue,
                };
                let category = word(self.category[number].get(place));
                let Some((label, ..)) = flow::LABELS.iter().find(|label| label.1 == category) else { continue };
                if ends & bit == 0 && (ends == 0 || ends & !(flow::STARTS | flow::ENDS) == *label) {
                    ends |= bit | label;
                    self.explained[number][place / 64] |= 1 << (place % 64);
                }
            }
        }
        if ends == 0 { NO_INT } else { ends }
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
