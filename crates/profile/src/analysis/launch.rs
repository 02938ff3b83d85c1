//! Launches: how long they take, and how long what they start waits.

use serde::Serialize;

use super::stats::{Distribution, share};
use super::work::{NO_CALL, Rank, Work};

/// What is known of a rank's launches. A pair is a launch call and an event that it started.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaunchStatistics {
    /// Pairs.
    pub pairs: u64,
    /// Events of a device without a launch on record.
    pub without_launch: u64,
    /// Pairs whose event starts before its launch call does: clocks of host and device disagree.
    pub before_launch: u64,
    /// Durations of the launch calls, one for each pair.
    pub call: Distribution,
    /// Durations of the events.
    pub event: Distribution,
    /// From the end of the call to the start of the event, at least 0.
    pub delay: Distribution,
    /// From the start of the call to the start of the event: how far the host runs ahead. May be negative.
    pub run_ahead: Distribution,
    /// Events shorter than their launch call, where that is no outlier ([`Options::runtime_cutoff_ns`](super::Options::runtime_cutoff_ns)).
    pub short: Outliers,
    /// Launch calls longer than the cutoff.
    pub slow_calls: Outliers,
    /// Delays longer than [`Options::launch_delay_cutoff_ns`](super::Options::launch_delay_cutoff_ns).
    pub long_delays: Outliers,
    /// The pairs with the longest delay, longest first.
    pub longest: Vec<LaunchPair>,
}

/// Some of the pairs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outliers {
    /// How many.
    pub count: u64,
    /// Share of all pairs, 0 to 1.
    pub share: f64,
    /// Sum of what makes them odd: events' durations (short), calls' durations (slow calls), delays (long delays), ns.
    pub ns: i64,
}

/// A launch call and an event that it started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchPair {
    /// Name of the event.
    pub name: String,
    /// Name of the call.
    pub call: String,
    /// What joins them.
    pub correlation: i64,
    /// Track of the event.
    pub track: i64,
    /// Device of the event.
    pub device: i64,
    /// Stream of the event.
    pub stream: i64,
    /// Track of the call.
    pub call_track: i64,
    /// Start of the call, ns on the rank's clock.
    pub call_ns: i64,
    /// Duration of the call, ns.
    pub call_dur_ns: i64,
    /// Start of the event, ns on the rank's clock.
    pub event_ns: i64,
    /// Duration of the event, ns.
    pub event_dur_ns: i64,
    /// From the end of the call to the start of the event, at least 0, ns.
    pub delay_ns: i64,
}

/// Calls of which HTA's launch statistics know.
const HTA_CALLS: [&str; 5] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
];

/// From the end of the call to the start of the event, at least 0.
fn delay(work: &Work) -> i64 {
    (work.ts - work.call_ts.saturating_add(work.call_dur)).max(0)
}

/// The work whose launch calls count.
fn pairs<'r>(rank: &'r Rank<'_>) -> impl Iterator<Item = &'r Work> {
    let known: Option<Vec<u32>> = rank.options.hta_compat.then(|| {
        let texts = &rank.run.texts;
        HTA_CALLS.iter().filter_map(|name| texts.find(name)).collect()
    });
    rank.work.iter().filter(move |work| match (work.call, &known) {
        (NO_CALL, _) => false,
        (call, Some(known)) => known.contains(&rank.host[call as usize].name),
        (_, None) => true,
    })
}

/// What is known of a rank's launches.
pub(super) fn launches(rank: &Rank<'_>) -> LaunchStatistics {
    let options = rank.options;
    let size = rank.work.len();
    let mut statistics = LaunchStatistics::default();
    let [mut calls, mut events, mut delays, mut aheads] = [(); 4].map(|()| Vec::with_capacity(size));
    let mut longest: Vec<(i64, &Work)> = Vec::new();
    for work in pairs(rank) {
        let delay = delay(work);
        calls.push(work.call_dur);
        events.push(work.dur);
        delays.push(delay);
        aheads.push(work.ts - work.call_ts);
        statistics.before_launch += u64::from(work.ts < work.call_ts);
        if work.dur < work.call_dur && work.call_dur <= options.runtime_cutoff_ns {
            statistics.short.add(work.dur);
        }
        if work.call_dur > options.runtime_cutoff_ns {
            statistics.slow_calls.add(work.call_dur);
        }
        if delay > options.launch_delay_cutoff_ns {
            statistics.long_delays.add(delay);
        }
        if longest.len() < options.top || longest.last().is_some_and(|last| delay > last.0) {
            let at = longest.partition_point(|other| other.0 >= delay);
            longest.insert(at, (delay, work));
            longest.truncate(options.top);
        }
    }
    statistics.pairs = calls.len() as u64;
    statistics.without_launch = rank.work.iter().filter(|work| work.call == NO_CALL).count() as u64;
    for outliers in [&mut statistics.short, &mut statistics.slow_calls, &mut statistics.long_delays] {
        outliers.share = share(outliers.count, statistics.pairs);
    }
    statistics.call = Distribution::of(&mut calls);
    statistics.event = Distribution::of(&mut events);
    statistics.delay = Distribution::of(&mut delays);
    statistics.run_ahead = Distribution::of(&mut aheads);
    statistics.longest = longest.into_iter().map(|(delay, work)| pair(rank, delay, work)).collect();
    statistics
}

impl Outliers {
    fn add(&mut self, ns: i64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

fn pair(rank: &Rank<'_>, delay_ns: i64, work: &Work) -> LaunchPair {
    let call = &rank.host[work.call as usize];
    let event = &rank.events.device[work.event as usize];
    LaunchPair {
        name: rank.run.text(work.name).to_owned(),
        call: rank.run.text(call.name).to_owned(),
        correlation: call.correlation.unwrap_or_default(),
        track: event.track,
        device: event.device,
        stream: event.stream,
        call_track: call.track,
        call_ns: call.ts,
        call_dur_ns: call.dur,
        event_ns: work.ts,
        event_dur_ns: work.dur,
        delay_ns,
    }
}
