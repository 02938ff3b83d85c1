//! What HTA 0.5.0 sees of a rank: its filter, its rounding, its classes.
//!
//! * A device event is a row with a stream. Synchronisation rows with one count, annotations have none.
//! * With two or more `ProfilerStep`s in the run, a device event with a correlation stays only if a row of the host has the same
//!   one, and stays as often as such rows are (an inner join). The other condition, that the row starts before the end of the last
//!   step, compares times before and after HTA's shift to 0 and so always holds.
//! * A trace with fractions of a µs is rounded: starts up, ends down, to whole µs, in `f64`.
//! * Classes go by name alone.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Options;
use super::threads::Threads;
use super::work::{Kind, Rank, Stream, Work, bounded_host, is_bounded};
use crate::{DeviceEvent, DeviceKind, HostEvent, RankEvents, Run};

/// HTA's rounding of a trace's times to µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    /// HTA does not add it.
    base_ns: i64,
}

impl Rounding {
    /// The rounding of a rank, if HTA would round it.
    fn of(events: &RankEvents) -> Option<Self> {
        let base_ns = events.info.base_ns;
        let fractional = |ts: i64| ts.saturating_sub(base_ns) % 1_000 != 0;
        let any = events.device.iter().any(|event| fractional(event.ts))
            || events.host.iter().any(|event| fractional(event.ts));
        any.then_some(Self { base_ns })
    }

    /// The start and duration that HTA works with, ns.
    pub(super) fn apply(self, ts: i64, dur: i64) -> (i64, i64) {
        let start = us(ts.saturating_sub(self.base_ns));
        let end = (start + us(dur)).floor();
        let start = start.ceil();
        (
            (start as i64).saturating_mul(1_000).saturating_add(self.base_ns),
            ((end - start) as i64).saturating_mul(1_000),
        )
    }
}

/// What Python makes of a time that the trace writes in µs: the nearest `f64` to the decimal.
fn us(ns: i64) -> f64 {
    let (sign, ns) = (if ns < 0 { "-" } else { "" }, ns.unsigned_abs());
    format!("{sign}{}.{:03}", ns / 1_000, ns % 1_000).parse().unwrap_or(f64::NAN)
}

/// HTA's `get_kernel_type`: `^nccl.*Kernel`, `(^Memcpy)|(^Memset)|(^dma)`, and what does not match
/// `(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)` at its start.
fn kind_of(name: &str) -> Kind {
    let communication = name.strip_prefix("nccl").is_some_and(|rest| rest.contains("Kernel"));
    if communication {
        Kind::Communication
    } else if ["Memcpy", "Memset", "dma"].iter().any(|prefix| name.starts_with(prefix)) {
        Kind::Memory
    } else if name.contains("Memcpy") || name.contains("Sync") {
        Kind::Other
    } else {
        Kind::Compute
    }
}

/// HTA's `GPUKernelFilter`.
fn is_gpu_row(event: &DeviceEvent, name: &str) -> bool {
    (event.stream >= 0 && event.correlation.is_some_and(|id| id >= 0)) || matches!(name, "Event Sync" | "Context Sync")
}

/// Whether the run has steps to filter by: HTA looks at the names of all ranks.
fn has_steps(run: &Run) -> bool {
    let mut steps: FxHashSet<u32> = FxHashSet::default();
    let mut known: Vec<Option<bool>> = vec![None; run.texts.len()];
    let host = run.ranks.iter().flat_map(|rank| rank.host.iter().map(|event| event.name));
    for name in host.chain(run.ranks.iter().flat_map(|rank| rank.device.iter().map(|event| event.name))) {
        if *known[name as usize].get_or_insert_with(|| run.text(name).contains("ProfilerStep")) {
            steps.insert(name);
        }
    }
    steps.len() > 1
}

/// A rank as HTA sees it.
pub(super) fn rank<'r>(run: &'r Run, events: &'r RankEvents, options: &'r Options) -> Rank<'r> {
    let rounding = Rounding::of(events);
    let round = |ts: i64, dur: i64| rounding.map_or((ts, dur), |rounding| rounding.apply(ts, dur));
    let host = bounded_host(&events.host);
    let host: Cow<'r, [HostEvent]> = match rounding {
        None => host,
        Some(_) => {
            let rounded = host.iter().map(|event| {
                let (ts, dur) = round(event.ts, event.dur);
                HostEvent { ts, dur, ..*event }
            });
            Cow::Owned(rounded.collect())
        }
    };
    let has_stream = |event: &DeviceEvent| {
        event.kind != DeviceKind::Annotation && event.stream != -1 && is_bounded(event.ts, event.dur)
    };
    // How often a row of the host has each correlation.
    let host_rows = has_steps(run).then(|| {
        let mut counts: FxHashMap<i64, usize> = FxHashMap::default();
        let device = events.device.iter().filter(|event| !is_gpu_row(event, run.text(event.name)));
        let ids = host.iter().map(|event| event.correlation).chain(device.map(|event| event.correlation));
        for id in ids.flatten() {
            *counts.entry(id).or_default() += 1;
        }
        counts
    });
    let (threads, mut calls) = Threads::scan(run, &host, |_| true);
    let mut kinds: FxHashMap<u32, Kind> = FxHashMap::default();
    let mut work: Vec<(Work, Stream)> = Vec::new();
    for (at, event) in events.device.iter().enumerate().filter(|(_, event)| has_stream(event)) {
        let name = run.text(event.name);
        let (ts, dur) = round(event.ts, event.dur);
        let kind = *kinds.entry(event.name).or_insert_with(|| kind_of(name));
        let mut one = Work { ts, dur, ..Work::new(event, at, kind) };
        one.join(&mut calls, &host, event.correlation);
        let times = match &host_rows {
            Some(counts) if is_gpu_row(event, name) => {
                event.correlation.and_then(|id| counts.get(&id).copied()).unwrap_or_default()
            }
            _ => 1,
        };
        let stream = Stream { track: event.track, device: event.device, stream: event.stream, range: 0..0 };
        work.extend(std::iter::repeat_n((one, stream), times));
    }
    work.sort_by_key(|(work, stream)| (stream.stream, work.ts));
    let mut streams: Vec<Stream> = Vec::new();
    for (at, (_, stream)) in work.iter().enumerate() {
        match streams.last_mut() {
            Some(last) if last.stream == stream.stream => last.range.end = at + 1,
            _ => streams.push(Stream { range: at..at + 1, ..stream.clone() }),
        }
    }
    let work = work.into_iter().map(|(work, _)| work).collect();
    Rank { run, events, options, work, streams, host, threads, rounding }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_f64_microseconds() {
        let rounding = Rounding { base_ns: 0 };
        assert_eq!(rounding.apply(1_500, 2_000), (2_000, 1_000));
        assert_eq!(rounding.apply(1_100, 300), (2_000, -1_000));
        // 1712195495519689.047 µs is nearest to …689.0 in f64, so nothing is rounded up.
        assert_eq!(rounding.apply(1_712_195_495_519_689_047, 3_000), (1_712_195_495_519_689_000, 3_000));
        assert_eq!(us(-1_500), -1.5);
    }

    #[test]
    fn classes_go_by_name() {
        assert_eq!(kind_of("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"), Kind::Communication);
        assert_eq!(kind_of("ncclDevKernel_AllGather"), Kind::Communication);
        assert_eq!(kind_of("Memcpy HtoD (Pageable -> Device)"), Kind::Memory);
        assert_eq!(kind_of("Stream Wait Event"), Kind::Compute);
        assert_eq!(kind_of("Event Sync"), Kind::Other);
    }
}
