//! How many launched events wait on each stream.

use serde::Serialize;

use super::stats::{Summary, share};
use super::work::{NO_CALL, Rank};

/// The length of a stream's queue: +1 when a launch call starts, −1 when its event does. A graph's launch is one entry of the queue
/// on each of its streams, until its first event there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamQueue {
    /// Track of the stream.
    pub track: i64,
    /// Device number.
    pub device: i64,
    /// Stream number.
    pub stream: i64,
    /// Length after each change.
    pub at_changes: Summary,
    /// Mean over time, between the first and the last change.
    pub mean_over_time: f64,
    /// From the first to the last change, ns.
    pub span_ns: i64,
    /// Time with at least [`Options::queue_limit`](super::Options::queue_limit) events waiting, ns: launch calls block then.
    pub full_ns: i64,
    /// Time with nothing waiting, ns.
    pub empty_ns: i64,
}

/// Calls of which HTA's queue knows.
const HTA_CALLS: [&str; 11] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemsetAsync",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
];

/// The queue of each stream that has launches on record. Of changes at the same time, launches come first, so that the length is
/// never negative unless an event starts before its launch.
pub(super) fn queues(rank: &Rank<'_>) -> Vec<StreamQueue> {
    let known: Option<Vec<u32>> = rank.options.hta_compat.then(|| {
        let texts = &rank.run.texts;
        HTA_CALLS.iter().filter_map(|name| texts.find(name)).collect()
    });
    let mut queues = Vec::new();
    for stream in &rank.streams {
        let counted = rank.work[stream.range.clone()].iter().filter(|work| match (work.call, &known) {
            (NO_CALL, _) => false,
            (call, Some(known)) => known.contains(&rank.host[call as usize].name),
            (_, None) => true,
        });
        // Streams run in order and threads launch in order: sorted already, or a few sorted runs.
        let mut pairs: Vec<(u32, i64, i64)> = counted.map(|work| (work.call, work.call_ts, work.ts)).collect();
        if known.is_none() {
            pairs.sort();
            pairs.dedup_by_key(|pair| pair.0);
        }
        if pairs.is_empty() {
            continue;
        }
        let mut launches: Vec<i64> = pairs.iter().map(|pair| pair.1).collect();
        let mut starts: Vec<i64> = pairs.iter().map(|pair| pair.2).collect();
        launches.sort();
        starts.sort();
        let mut queue = StreamQueue {
            track: stream.track,
            device: stream.device,
            stream: stream.stream,
            at_changes: Summary::default(),
            mean_over_time: 0.0,
            span_ns: 0,
            full_ns: 0,
            empty_ns: 0,
        };
        fill(&mut queue, &launches, &starts, rank.options.queue_limit);
        queues.push(queue);
    }
    queues
}

/// Walks through all changes of a queue.
fn fill(queue: &mut StreamQueue, launches: &[i64], starts: &[i64], limit: i64) {
    let (mut launched, mut started, mut length) = (0, 0, 0i64);
    let first = launches[0].min(starts[0]);
    let mut before = first;
    let mut area: i128 = 0;
    // How often each length came, from the lowest that a queue of this many can have.
    let low = -(starts.len() as i64);
    let mut counts = vec![0u64; starts.len() * 2 + 1];
    while launched + started < launches.len() + starts.len() {
        let launch = started == starts.len() || (launched < launches.len() && launches[launched] <= starts[started]);
        let (now, change) = if launch { (launches[launched], 1) } else { (starts[started], -1) };
        launched += usize::from(launch);
        started += usize::from(!launch);
        let time = now - before;
        area += i128::from(time) * i128::from(length);
        if length >= limit {
            queue.full_ns += time;
        }
        if length <= 0 {
            queue.empty_ns += time;
        }
        length += change;
        before = now;
        counts[(length - low) as usize] += 1;
    }
    queue.span_ns = before - first;
    queue.mean_over_time = share(area, queue.span_ns);
    queue.at_changes = Summary::of_counts(low, &counts);
}
