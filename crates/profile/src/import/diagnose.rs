//! What was odd in the sources and in the job they make.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::assemble::{RankLine, Source};
use super::diagnostics::{Anomaly, Diagnostic, Diagnostics};
use super::discover::Format;
use super::gather::SharedState;
use super::launches;
use super::listen::RankDiagnostics;
use super::merge::{Place, Spills};

/// What is left over after alignment is loose above this, ns: ends of a collective differ by some tens of microseconds.
const LOOSE_NS: i64 = 100_000;

/// Clocks of one job's hosts are not further apart.
const HOUR_NS: u64 = 3_600_000_000_000;

/// Everything odd, source by source; what is of the whole import comes last.
pub(super) fn diagnose(
    sources: &[Option<Source>],
    mut state: SharedState,
    spills: &Spills,
    places: &[Place],
    ranks: &[RankLine],
    mut watched: RankDiagnostics,
    mut lost: Diagnostics,
) -> Vec<Diagnostic> {
    let mut lines = Vec::new();
    let rank_of_slot: FxHashMap<u32, i64> = places.iter().map(|place| (place.slot, place.rank)).collect();
    for (number, source) in sources.iter().enumerate() {
        let Some(source) = source else { continue };
        let name = source.file_name();
        let mut diagnostics = state.diagnostics.remove(&(number as u32)).unwrap_or_default();
        for assigned in &source.ranks {
            match assigned.from {
                "order" | "file name" if source.format == Format::Chrome => {
                    let example = || format!("{name}: rank {}, from its {}", assigned.rank, assigned.from);
                    diagnostics.count(Anomaly::AssumedRank, example, None);
                }
                _ => {}
            }
            if let Some(stated) = assigned.conflict {
                let example = || format!("{name} states rank {stated} too; it is rank {} here", assigned.rank);
                diagnostics.count(Anomaly::RankConflict, example, None);
            }
            if let Some(watched) = watched.remove(&assigned.rank) {
                diagnostics.merge(watched);
            }
            let mine = |slot: u32| rank_of_slot.get(&slot) == Some(&assigned.rank);
            launches::check(spills, &state.runs, mine, &mut diagnostics);
        }
        let rank = match source.ranks.as_slice() {
            [one] => Some(one.rank),
            _ => None,
        };
        lines.extend(diagnostics.lines(rank, &name));
    }
    let world =
        sources.iter().flatten().flat_map(|source| &source.facts.parts).filter_map(|part| part.world_size).max();
    let present: FxHashSet<i64> = ranks.iter().map(|line| line.rank).collect();
    // A job of a million ranks is not listed one by one.
    let missing =
        world.map_or(0, |world| world.saturating_sub(present.iter().filter(|rank| **rank < world).count() as i64));
    if let Some(world) = world
        && missing > 0
    {
        let first = (0..world).find(|rank| !present.contains(rank)).unwrap_or_default();
        lost.add(Anomaly::MissingRank, missing as u64, Some(format!("rank {first} of {world}")));
    }
    let bases: FxHashSet<i64> = ranks.iter().map(|line| line.base_ns).collect();
    if bases.len() > 1 {
        let mut bases: Vec<i64> = bases.into_iter().collect();
        bases.sort_unstable();
        lost.add(Anomaly::DifferentBases, bases.len() as u64, Some(format!("{bases:?}")));
    }
    let worlds: BTreeSet<i64> =
        sources.iter().flatten().flat_map(|source| &source.facts.parts).filter_map(|part| part.world_size).collect();
    if worlds.len() > 1 {
        lost.add(Anomaly::DifferentJobs, worlds.len() as u64, Some(format!("world sizes {worlds:?}")));
    }
    for line in ranks.iter().filter(|line| line.offset_ns.unsigned_abs() > HOUR_NS) {
        let example = || format!("rank {}: its clock is {} s away", line.rank, line.offset_ns / 1_000_000_000);
        lost.count(Anomaly::DifferentJobs, example, None);
    }
    for line in ranks.iter().skip(1) {
        let residual = line.residual_ns.unwrap_or(0);
        if line.matched_collectives == 0 {
            lost.count(Anomaly::NoCollectives, || format!("rank {}", line.rank), None);
        } else if residual > LOOSE_NS {
            let example = || format!("rank {}: offset {} ns, left over {residual} ns", line.rank, line.offset_ns);
            lost.count(Anomaly::LooseAlignment, example, None);
        }
    }
    lines.extend(lost.lines(None, ""));
    lines
}
