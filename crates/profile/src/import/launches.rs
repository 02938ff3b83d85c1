//! Launches against what they started: ids that several share, device work without one or before it.

use rustc_hash::FxHashMap;
use trace::NO_INT;
use trace::schema::Table;

use super::diagnostics::{Anomaly, Diagnostics};
use super::merge::Spills;
use super::runs::Run;

/// Launches that are kept in memory at a time; more are looked at in several passes.
const KEPT: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Launches {
    /// Launches of this id.
    count: u32,
    /// Start of the first.
    first: i64,
    /// Slices that they started.
    started: u32,
}

/// Counts what is odd about the launches of the slots (tracks) for which `belongs` is true.
pub(super) fn check(spills: &Spills, runs: &[Run], belongs: impl Fn(u32) -> bool, diagnostics: &mut Diagnostics) {
    let host = spills.runs(runs, Table::Host, false);
    let device = spills.runs(runs, Table::Device, false);
    let column = |table: Table, name: &str| table.column(name).expect("a column of slices");
    let tracks = host.iter().flat_map(|open| &open.run.tracks).filter(|(slot, _)| belongs(*slot));
    let launches: usize = tracks.map(|(_, rows)| rows.len()).sum();
    let passes = launches.div_ceil(KEPT).max(1) as u64;
    for pass in 0..passes {
        let mine = |correlation: i64| correlation as u64 % passes == pass;
        let mut known: FxHashMap<i64, Launches> = FxHashMap::default();
        for open in &host {
            let ids = open.ints(column(Table::Host, "correlation"));
            let starts = open.ints(column(Table::Host, "ts"));
            let kinds = open.texts(column(Table::Host, "kind"));
            for (slot, rows) in &open.run.tracks {
                if !belongs(*slot) {
                    continue;
                }
                for row in rows.start as usize..rows.end as usize {
                    let id = ids.get(row);
                    if id == NO_INT || !mine(id) || !matches!(open.text(kinds.get(row)), "runtime" | "driver") {
                        continue;
                    }
                    let start = starts.get(row);
                    let seen = known.entry(id).or_insert(Launches { count: 0, first: start, started: 0 });
                    seen.count += 1;
                    seen.first = seen.first.min(start);
                }
            }
        }
        for open in &device {
            let ids = open.ints(column(Table::Device, "correlation"));
            let starts = open.ints(column(Table::Device, "ts"));
            let names = open.texts(column(Table::Device, "name"));
            let kinds = open.texts(column(Table::Device, "kind"));
            let flags = open.texts(column(Table::Device, "flag"));
            for (slot, rows) in &open.run.tracks {
                if !belongs(*slot) {
                    continue;
                }
                for row in rows.start as usize..rows.end as usize {
                    let id = ids.get(row);
                    let work = matches!(open.text(kinds.get(row)), "kernel" | "memcpy" | "memset");
                    if !work || flags.get(row) != trace::NO_TEXT || !mine(if id == NO_INT { 0 } else { id }) {
                        continue;
                    }
                    let name = || open.text(names.get(row)).to_owned();
                    match known.get_mut(&id) {
                        None => diagnostics.count(Anomaly::WithoutLaunch, name, None),
                        Some(seen) => {
                            seen.started += 1;
                            if starts.get(row) < seen.first {
                                diagnostics.count(Anomaly::BeforeLaunch, name, None);
                            }
                        }
                    }
                }
            }
        }
        let mut shared: Vec<i64> =
            known.iter().filter(|(_, seen)| seen.count > 1 || seen.started > 1).map(|(id, _)| *id).collect();
        shared.sort_unstable();
        for id in shared {
            diagnostics.count(Anomaly::DuplicateCorrelation, || format!("correlation {id}"), None);
        }
    }
}
