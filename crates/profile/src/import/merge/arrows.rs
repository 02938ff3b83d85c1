//! Launch arrows: the ends that slices imply, and those that are rows of their own.

use rustc_hash::FxHashMap;
use trace::schema::{Table, flow};
use trace::{NO_INT, Writer};

use super::{Cursor, Ints, Output, Place, Spills, TableRuns};
use crate::import::Error;
use crate::import::runs::{Run, Values};

/// Ends of arrows, by track and time, and which of them slices explain.
pub(in crate::import) struct Arrows<'m> {
    rows: TableRuns<'m>,
    id: Ints<'m>,
    phase: Vec<Values<'m, u32>>,
    category: Vec<Values<'m, u32>>,
    /// Where each run of a track stands: run, next row, end.
    tracks: FxHashMap<u32, Vec<(u32, u32, u32)>>,
    /// Explained by a slice: by run, a bit per row.
    explained: Vec<Vec<u64>>,
}

/// Ends at one time on one track that are looked at for a slice: those beyond stay in the table `flows`. Otherwise a file with all
/// times equal would take quadratic time.
const MOST_AT_ONCE: u32 = 4096;

impl<'m> Arrows<'m> {
    pub fn new(spills: &'m Spills, runs: &'m [Run]) -> Self {
        let rows = TableRuns::new(spills.runs(runs, Table::Flows, false), Table::Flows, false);
        Self {
            id: rows.ints("id"),
            phase: rows.texts("phase"),
            category: rows.texts("category"),
            tracks: rows.tracks.clone(),
            explained: rows.runs.iter().map(|open| vec![0u64; open.run.rows.div_ceil(64)]).collect(),
            rows,
        }
    }

    /// The `flow` of a slice: launch arrows of its correlation that end at its start. Slices come in order of time.
    pub(super) fn take(&mut self, slot: u32, ts: i64, correlation: i64) -> i64 {
        let Some(track) = self.tracks.get_mut(&slot) else { return NO_INT };
        let mut ends = 0;
        for (run, next, end) in track {
            let starts = &self.rows.ts[*run as usize];
            let explained = &mut self.explained[*run as usize];
            while *next < *end && starts.get(*next as usize) < ts {
                *next += 1;
            }
            // Several slices may start at this time: look at all ends here and pass none.
            let last = (*end).min(next.saturating_add(MOST_AT_ONCE));
            for row in (*next..last).take_while(|row| starts.get(*row as usize) == ts) {
                let cursor = Cursor { run: *run, row };
                if self.id.get(cursor) != correlation || is_set(explained, row) {
                    continue;
                }
                let bit = match self.rows.text(&self.phase, cursor) {
                    Some("s") => flow::STARTS,
                    Some("f") => flow::ENDS,
                    _ => continue,
                };
                let category = self.rows.text(&self.category, cursor);
                let Some((label, ..)) = flow::LABELS.iter().find(|label| Some(label.1) == category) else { continue };
                if ends & bit == 0 && (ends == 0 || ends & !(flow::STARTS | flow::ENDS) == *label) {
                    ends |= bit | label;
                    explained[row as usize / 64] |= 1 << (row % 64);
                }
            }
        }
        if ends == 0 { NO_INT } else { ends }
    }

    /// Writes the ends that no slice explains.
    pub fn write_rest(self, places: &[Place], writer: &mut Writer) -> Result<(), Error> {
        // Without rows there is no file.
        let mut output = Output::new(Table::Flows, &self.rows.runs);
        for place in places {
            for (cursor, ts, _) in self.rows.rows(place.slot) {
                if !is_set(&self.explained[cursor.run as usize], cursor.row) {
                    output.point(cursor, *place, ts, writer)?;
                }
            }
        }
        output.close(writer)
    }
}

fn is_set(bits: &[u64], row: u32) -> bool {
    bits[row as usize / 64] >> (row % 64) & 1 == 1
}
