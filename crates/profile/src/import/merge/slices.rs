//! Slices of hosts and devices, with the rows they are drawn in.

use trace::schema::{Table, implied};
use trace::{NO_INT, Writer};

use super::output::Worked;
use super::{Arrows, Output, Place, Spills, TableRuns};
use crate::import::Error;
use crate::import::runs::Run;

/// Open slices of a track: gives each new one the lowest row above all that are still open.
#[derive(Default)]
struct Stack {
    ends: Vec<i64>,
}

impl Stack {
    /// The row of a slice, and whether it ends after one that began before it and is still open.
    fn push(&mut self, ts: i64, dur: i64) -> (i64, bool) {
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
pub(in crate::import) trait Listener {
    /// A track of so many slices begins; it starts at `first` and its last slice at `last`.
    fn track(&mut self, place: &Place, slices: u64, first: i64, last: i64, writer: &mut Writer) -> Result<(), Error>;
    fn slice(&mut self, place: &Place, slice: &Slice<'_>) -> Result<(), Error>;
}

/// A slice as the merge sees it.
pub(in crate::import) struct Slice<'a> {
    pub ts: i64,
    pub dur: i64,
    pub depth: i64,
    pub overlaps: bool,
    pub flag: &'a str,
    /// Asked for on few tracks only.
    pub kind: &'a dyn Fn() -> &'a str,
    pub name: &'a dyn Fn() -> &'a str,
    pub correlation: Option<i64>,
}

/// Merges the slices of a table, works out rows, takes the arrows' ends that a slice explains, and tells `listener` of each.
pub(in crate::import) fn slices(
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
    let table_runs = TableRuns::new(open, table, true);
    let (correlation, external_id) = (table_runs.ints("correlation"), table_runs.ints("external_id"));
    let python = table.column("python_id").map(|_| (table_runs.ints("python_id"), table_runs.ints("python_parent")));
    let (flag, kind, name) = (table_runs.texts("flag"), table_runs.texts("kind"), table_runs.texts("name"));
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
            let correlation = correlation.get(cursor);
            let (depth, overlaps) = stack.push(ts, dur);
            let flow = if correlation == NO_INT { NO_INT } else { arrows.take(place.slot, ts, correlation) };
            let external = external_id.get(cursor);
            let mut said = 0;
            if external != NO_INT && external == correlation {
                said |= implied::SAME_AS_CORRELATION;
            }
            if let Some((id, parent)) = &python {
                let parent = parent.get(cursor);
                frames.truncate(depth as usize);
                let around = || frames.iter().rev().find(|frame| **frame != NO_INT);
                if parent != NO_INT && around() == Some(&parent) {
                    said |= implied::ENCLOSING_FRAME;
                }
                frames.push(id.get(cursor));
            }
            let implied = if said == 0 { NO_INT } else { said };
            output.push(cursor, *place, Worked { ts, depth, flow, implied }, writer)?;
            listener.slice(
                place,
                &Slice {
                    ts: ts.saturating_add(place.base_ns),
                    dur,
                    depth,
                    overlaps,
                    flag: table_runs.text(&flag, cursor).unwrap_or_default(),
                    kind: &|| table_runs.text(&kind, cursor).unwrap_or_default(),
                    name: &|| table_runs.text(&name, cursor).unwrap_or_default(),
                    correlation: (correlation != NO_INT).then_some(correlation),
                },
            )?;
        }
    }
    output.close(writer)
}
