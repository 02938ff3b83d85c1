//! Where a rank's time went: idle, compute, the rest; kinds of kernels and their overlaps.

use serde::Serialize;

use super::intervals::{self, Interval};
use super::stats::share;
use super::work::{Kind, Rank, Stream, Work, is_bounded};
use crate::{Class, DeviceEvent, Flag};

/// Where the time of a rank (or of one device) went. Intervals are half-open, all streams are taken together, times are unions.
/// `busy + idle = span` and `compute + non_compute + idle = span`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Temporal {
    /// Start of the first work of the device, ns on the rank's clock.
    pub first_ns: i64,
    /// End of the last, ns on the rank's clock.
    pub last_ns: i64,
    /// `last_ns - first_ns`.
    pub span_ns: i64,
    /// Time with any work, ns.
    pub busy_ns: i64,
    /// Time without, ns.
    pub idle_ns: i64,
    /// Time with a computing kernel, ns.
    pub compute_ns: i64,
    /// Busy time without a computing kernel, ns.
    pub non_compute_ns: i64,
    /// Time with communication, ns.
    pub communication_ns: i64,
    /// Time with a copy or fill, ns.
    pub memory_ns: i64,
    /// Time with both computation and communication, ns.
    pub overlap_ns: i64,
    /// `idle_ns / span_ns`, 0 to 1.
    pub idle_share: f64,
    /// `compute_ns / span_ns`, 0 to 1.
    pub compute_share: f64,
    /// `non_compute_ns / span_ns`, 0 to 1.
    pub non_compute_share: f64,
    /// Events counted.
    pub events: u64,
    /// Of these, with duration 0.
    pub zero_duration: u64,
    /// Left out because the profiler lost their times, or they are beyond 146 years from 0.
    pub lost_timestamp: u64,
    /// Left out because they end before they start.
    pub negative_duration: u64,
}

/// The same for one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceTemporal {
    /// Device number.
    pub device: i64,
    /// Name of its model, where the source says.
    pub name: Option<String>,
    /// Where its time went, from its own first to its own last event.
    pub temporal: Temporal,
}

/// How much communication hides behind computation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overlap {
    /// Time with communication, ns.
    pub communication_ns: i64,
    /// Time with both, ns.
    pub overlap_ns: i64,
    /// Time with communication and without computation, ns.
    pub exposed_ns: i64,
    /// `overlap_ns / communication_ns`, 0 to 1; none without communication.
    pub share: Option<f64>,
}

/// Time with exactly these classes of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelType {
    /// `compute`, `communication` or `memory`, in that order; several where they overlap.
    pub classes: Vec<&'static str>,
    /// Time, ns; over several ranks, their sum.
    pub ns: i64,
    /// Share of all busy time, 0 to 1.
    pub share: f64,
}

/// The unions that several analyses need.
pub(super) struct Unions {
    pub busy: Vec<Interval>,
    pub compute: Vec<Interval>,
    pub communication: Vec<Interval>,
    pub memory: Vec<Interval>,
}

impl Unions {
    pub(super) fn of<'s>(rank: &Rank<'_>, streams: impl IntoIterator<Item = &'s Stream> + Clone) -> Self {
        let union = |kind: Kind| rank.union_of(streams.clone(), |work| work.kind == kind);
        Unions {
            busy: rank.union_of(streams.clone(), |_| true),
            compute: union(Kind::Compute),
            communication: union(Kind::Communication),
            memory: union(Kind::Memory),
        }
    }
}

/// Where the time of this work went; `device` limits what is counted as left out.
pub(super) fn temporal<'w>(
    rank: &Rank<'_>,
    unions: &Unions,
    work: impl Iterator<Item = &'w Work>,
    device: Option<i64>,
) -> Temporal {
    let first = unions.busy.first().map_or(0, |interval| interval.0);
    // HTA takes the end of the last group, which no other reaches beyond.
    let last = unions.busy.last().map_or(0, |interval| interval.1);
    let (span, busy, compute) =
        (last.saturating_sub(first), intervals::total(&unions.busy), intervals::total(&unions.compute));
    let mut temporal = Temporal {
        first_ns: first,
        last_ns: last,
        span_ns: span,
        busy_ns: busy,
        idle_ns: span.saturating_sub(busy),
        compute_ns: compute,
        non_compute_ns: busy.saturating_sub(compute),
        communication_ns: intervals::total(&unions.communication),
        memory_ns: intervals::total(&unions.memory),
        overlap_ns: intervals::overlaps(&[&unions.compute, &unions.communication])[3],
        idle_share: share(i128::from(span) - i128::from(busy), span),
        compute_share: share(compute, span),
        non_compute_share: share(i128::from(busy) - i128::from(compute), span),
        ..Temporal::default()
    };
    for work in work {
        temporal.events += 1;
        temporal.zero_duration += u64::from(work.dur == 0);
    }
    let left_out = |flag: Flag| {
        let lost =
            |event: &DeviceEvent| flag == Flag::LostTimestamp && event.is_work() && !is_bounded(event.ts, event.dur);
        let events = rank.events.device.iter().filter(|event| event.class != Class::NotWork);
        let counts = events.filter(|event| event.flag == flag || lost(event));
        counts.filter(|event| device.is_none_or(|device| device == event.device)).count() as u64
    };
    temporal.lost_timestamp = left_out(Flag::LostTimestamp);
    temporal.negative_duration = left_out(Flag::NegativeDuration);
    temporal
}

/// The same for each device that works.
pub(super) fn devices(rank: &Rank<'_>, all: &Temporal) -> Vec<DeviceTemporal> {
    let devices = rank.devices();
    let only = devices.len() == 1;
    let of = |(device, streams): (i64, Vec<&Stream>)| {
        let work = streams.iter().flat_map(|stream| &rank.work[stream.range.clone()]);
        let described = &rank.run.devices;
        let named = described.iter().find(|known| known.rank == rank.events.info.rank && known.device == device);
        let temporal = if only {
            all.clone()
        } else {
            temporal(rank, &Unions::of(rank, streams.iter().copied()), work, Some(device))
        };
        DeviceTemporal { device, name: named.map(|known| known.name.clone()), temporal }
    };
    devices.into_iter().map(of).collect()
}

/// How much communication hides behind computation.
pub(super) fn overlap(temporal: &Temporal) -> Overlap {
    Overlap {
        communication_ns: temporal.communication_ns,
        overlap_ns: temporal.overlap_ns,
        exposed_ns: temporal.communication_ns - temporal.overlap_ns,
        share: (temporal.communication_ns != 0).then(|| share(temporal.overlap_ns, temporal.communication_ns)),
    }
}

/// Busy time by exactly what runs, longest first.
pub(super) fn kernel_types(unions: &Unions) -> Vec<KernelType> {
    let times = intervals::overlaps(&[&unions.compute, &unions.communication, &unions.memory]);
    let words = [Kind::Compute, Kind::Communication, Kind::Memory].map(Kind::word);
    let classes = |mask: usize| {
        let those = words.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
        those.map(|(_, word)| *word).collect()
    };
    let mut types: Vec<KernelType> = (1..times.len())
        .filter(|mask| times[*mask] != 0)
        .map(|mask| KernelType { classes: classes(mask), ns: times[mask], share: 0.0 })
        .collect();
    finish(&mut types);
    types
}

/// The sum over several ranks.
pub(super) fn sum_kernel_types<'t>(ranks: impl Iterator<Item = &'t [KernelType]>) -> Vec<KernelType> {
    let mut sum: Vec<KernelType> = Vec::new();
    for one in ranks.flatten() {
        match sum.iter_mut().find(|other| other.classes == one.classes) {
            Some(other) => other.ns = other.ns.saturating_add(one.ns),
            None => sum.push(one.clone()),
        }
    }
    finish(&mut sum);
    sum
}

fn finish(types: &mut [KernelType]) {
    let all: i128 = types.iter().map(|one| i128::from(one.ns)).sum();
    for one in types.iter_mut() {
        one.share = share(one.ns, all);
    }
    types.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.classes.cmp(&b.classes)));
}
