//! Copies and fills of device memory.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::stats::{Distribution, Summary};
use super::work::{Kind, Rank, Work};
use crate::DeviceKind;

/// Copies of one direction, or fills.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryOperation {
    /// `Memcpy HtoD`, `Memcpy DtoH`, `Memcpy DtoD`, `Memcpy PtoP`, `Memset` … as the names begin.
    pub direction: String,
    /// Durations.
    pub durations: Distribution,
    /// Bytes of those that say so.
    pub bytes: i64,
    /// How many say so.
    pub with_bytes: u64,
    /// Bytes per ns (GB/s) of those that say so and take time, over their own time; none where that is 0.
    pub mean_gb_per_s: Option<f64>,
    /// Bytes over duration (else the bandwidth that the source states), summed over those that run at once, at each change
    /// where it is above 0, GB/s; so its maximum is at least the mean above. HTA-compatible: as the source states it.
    pub bandwidth: Summary,
    /// Of these, from or to pageable host memory.
    pub pageable: Distribution,
    /// Their bytes.
    pub pageable_bytes: i64,
}

/// Copies and fills of a rank by direction, longest sum first.
pub(super) fn operations(rank: &Rank<'_>) -> Vec<MemoryOperation> {
    let mut directions: FxHashMap<u32, &str> = FxHashMap::default();
    let mut groups: FxHashMap<&str, Vec<&Work>> = FxHashMap::default();
    for work in rank.work.iter().filter(|work| work.kind == Kind::Memory) {
        let direction = directions.entry(work.name).or_insert_with(|| direction(rank, work));
        groups.entry(direction).or_default().push(work);
    }
    let mut operations: Vec<MemoryOperation> =
        groups.into_iter().map(|(direction, works)| operation(rank, direction, &works)).collect();
    operations.sort_by(|a, b| b.durations.sum_ns.cmp(&a.durations.sum_ns).then_with(|| a.direction.cmp(&b.direction)));
    operations
}

/// `Memcpy HtoD (Pageable -> Device)` is `Memcpy HtoD`; `Memset (Device)` is `Memset`.
fn direction<'r>(rank: &Rank<'r>, work: &Work) -> &'r str {
    let name = rank.run.text(work.name);
    if rank.options.hta_compat {
        // HTA's `get_memory_kernel_type`: the length of "Memcpy DtoH".
        return match name {
            name if name.starts_with("Memset") => "Memset",
            name if name.starts_with("Memcpy") => name.get(.."Memcpy DtoH".len()).unwrap_or(name),
            _ => "Memcpy Unknown",
        };
    }
    match work.device_kind {
        DeviceKind::Memset => "Memset",
        _ => name.split(" (").next().unwrap_or(name).trim_end(),
    }
}

fn operation(rank: &Rank<'_>, direction: &str, works: &[&Work]) -> MemoryOperation {
    let event = |work: &Work| &rank.events.device[work.event as usize];
    let mut operation = MemoryOperation {
        direction: direction.to_owned(),
        durations: Distribution::of(&mut works.iter().map(|work| work.dur).collect::<Vec<_>>()),
        bytes: 0,
        with_bytes: 0,
        mean_gb_per_s: None,
        bandwidth: Summary::default(),
        pageable: Distribution::default(),
        pageable_bytes: 0,
    };
    let (mut time, mut moved) = (0i64, 0i64);
    let mut pageable = Vec::new();
    let mut pageable_names: FxHashMap<u32, bool> = FxHashMap::default();
    for work in works {
        let bytes = event(work).bytes;
        if let Some(bytes) = bytes {
            operation.bytes = operation.bytes.saturating_add(bytes);
            operation.with_bytes += 1;
            if work.dur > 0 {
                (time, moved) = (time.saturating_add(work.dur), moved.saturating_add(bytes));
            }
        }
        let named = |name: u32| rank.run.text(name).contains("Pageable");
        if *pageable_names.entry(work.name).or_insert_with(|| named(work.name)) {
            pageable.push(work.dur);
            operation.pageable_bytes = operation.pageable_bytes.saturating_add(bytes.unwrap_or_default());
        }
    }
    operation.pageable = Distribution::of(&mut pageable);
    operation.mean_gb_per_s = (time > 0).then(|| moved as f64 / time as f64);
    operation.bandwidth = if rank.options.hta_compat { hta_bandwidth(rank, works) } else { bandwidth(rank, works) };
    operation
}

/// Bytes over duration, as the mean has it, else the bandwidth that the source states (which may be of its own clock), GB/s.
fn rate(rank: &Rank<'_>, work: &Work) -> Option<f64> {
    let event = &rank.events.device[work.event as usize];
    let measured = event.bytes.filter(|_| work.dur > 0).map(|bytes| bytes as f64 / work.dur as f64);
    measured.or(Some(event.bandwidth).filter(|stated| stated.is_finite()))
}

/// The sum of what runs, at each time when it changes.
fn bandwidth(rank: &Rank<'_>, works: &[&Work]) -> Summary {
    let mut changes: Vec<(i64, i32, f64)> = Vec::with_capacity(works.len() * 2);
    for work in works.iter().filter(|work| work.dur > 0) {
        if let Some(rate) = rate(rank, work) {
            changes.push((work.ts, 1, rate));
            changes.push((work.end(), -1, -rate));
        }
    }
    changes.sort_by_key(|change| (change.0, change.1));
    let (mut running, mut sum) = (0, 0.0);
    let mut points = Vec::with_capacity(changes.len());
    for (at, (ts, step, change)) in changes.iter().enumerate() {
        running += step;
        // Nothing runs: exactly 0, whatever rounding has left.
        sum = if running == 0 { 0.0 } else { sum + change };
        if sum > 0.0 && changes.get(at + 1).is_none_or(|next| next.0 != *ts) {
            points.push(sum);
        }
    }
    Summary::of(&mut points)
}

/// HTA's: one point for each start and end, a duration of 0 counts as 1 µs.
fn hta_bandwidth(rank: &Rank<'_>, works: &[&Work]) -> Summary {
    let mut changes: Vec<(i64, f64)> = Vec::with_capacity(works.len() * 2);
    for work in works {
        // HTA's default for a missing bandwidth.
        let stated = rank.events.device[work.event as usize].bandwidth;
        let stated = if stated.is_finite() { stated } else { 0.0 };
        changes.push((work.ts, stated));
        changes.push((work.ts + if work.dur == 0 { 1_000 } else { work.dur }, -stated));
    }
    changes.sort_by_key(|change| change.0);
    let mut sum = 0.0;
    let mut points = Vec::with_capacity(changes.len());
    for (_, change) in changes {
        sum += change;
        if sum > 0.0 {
            points.push(sum);
        }
    }
    Summary::of(&mut points)
}

#[cfg(test)]
mod tests {
    use trace::schema::DeviceRow;

    use crate::analysis::synthetic::{Synthetic, device};
    use crate::analysis::{Options, analyse};

    #[test]
    fn no_mean_is_above_the_peak() {
        let mut synthetic = Synthetic::new();
        synthetic.rank(0, &[], &[7]);
        // The source divides by times of its own; the third takes no time, the fourth says no bytes.
        for (at, (dur, bytes, stated)) in
            [(100, Some(1000), Some(4.0)), (50, Some(1000), Some(9.0)), (0, Some(1 << 40), None), (10, None, Some(3.0))]
                .into_iter()
                .enumerate()
        {
            let row = device("memcpy", "Memcpy HtoD (Pinned -> Device)", 7, 1000 * at as i64, dur, at as i64);
            synthetic.push(&DeviceRow { bytes, bandwidth: stated, ..row });
        }
        let (run, profile, _dir) = synthetic.load();
        let analyses = analyse(&run, &profile, &Options::default()).unwrap();
        let copies = &analyses.ranks[0].memory[0];
        assert_eq!(
            (copies.mean_gb_per_s, copies.bandwidth.max, copies.bandwidth.min),
            (Some(2000.0 / 150.0), 20.0, 3.0)
        );
        assert_eq!((copies.bytes, copies.with_bytes), (2000 + (1 << 40), 3));
    }
}
