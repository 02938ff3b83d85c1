//! Why devices are idle: each gap between the works of a device, and what the host did meanwhile.
//!
//! A gap is time without work on any stream of a device, between its first and last work. Its time counts, in this order, as: loading
//! of data, and calls that allocate, as far as they lie in it; the rest, if what ends the gap was launched after it began, as
//! synchronisation (a call that waits for the device returned when the gap began), as between steps (a step ended in it), as host work (1 ms or
//! longer), or as launches (shorter); else as unexplained.

use super::words::counted;
use super::{Facts, Finding, Hit, Link, percent, time, verb};
use crate::analysis::critical_path::loads_data;
use crate::analysis::intervals::{Coverage, Interval, merge};
use crate::analysis::work::{Rank, trusted};
use crate::{Class, HostKind};

/// Below this share of the span nobody would change a program: noise between runs is as large.
const LEAST: f64 = 0.03;
/// Launch overhead is everywhere; below this share graphs and fusion gain little.
const LEAST_LAUNCHES: f64 = 0.05;
/// Calls that allocate belong into the first steps only, so less of them is worth a word.
const LEAST_ALLOCATION: f64 = 0.02;
/// Some idle time is never explained; this much should not be passed over.
const LEAST_UNEXPLAINED: f64 = 0.10;
/// A gap this long is no matter of launching a kernel, which takes 5 to 50 µs: the host did something else.
const LONG_GAP_NS: i64 = 1_000_000;
/// Kernels shorter than this take no longer than their launch.
const SHORT_KERNEL_NS: i64 = 20_000;

const ALLOCATION: &[&str] = &[
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cudaMallocHost",
    "cudaFreeHost",
    "cudaHostRegister",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "hipMalloc",
    "hipFree",
    "hipHostMalloc",
    "hipHostFree",
    "hipExtMallocWithFlags",
];
const SYNCHRONISATION: &[&str] = &[
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipEventSynchronize",
    "hipMemcpy",
    "hipMemcpyWithStream",
];

/// Causes of idle time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Loading,
    Allocation,
    Synchronisation,
    BetweenSteps,
    HostWork,
    Launches,
    Unexplained,
}

const CAUSES: usize = 7;

/// Idle time of a device by cause.
struct Idle {
    rank: i64,
    device: i64,
    span_ns: i64,
    ns: [i64; CAUSES],
    gaps: [u64; CAUSES],
    worst: [(i64, Option<Link>); CAUSES],
    /// Median duration of its computing kernels, ns.
    kernel_ns: i64,
}

impl Idle {
    fn add(&mut self, cause: Cause, ns: i64, link: Link) {
        let at = cause as usize;
        if ns > 0 {
            self.ns[at] += ns;
            self.gaps[at] += 1;
            if ns > self.worst[at].0 {
                self.worst[at] = (ns, Some(link));
            }
        }
    }

    fn hit(&self, cause: Cause) -> Hit {
        let (ns, link) = (self.ns[cause as usize], self.worst[cause as usize].1);
        Hit { rank: self.rank, device: Some(self.device), ns, span_ns: self.span_ns, link }
    }
}

/// What the host of a rank did that explains gaps.
struct Host {
    loading: Vec<Interval>,
    allocation: Vec<Interval>,
    synchronisation: Vec<Interval>,
    /// Ends of steps, in order.
    steps: Vec<i64>,
}

impl Host {
    fn of(facts: &Facts<'_>, rank: &Rank<'_>) -> Self {
        // What each name means: 0 nothing, 1 loading, 2 allocation, 3 synchronisation.
        let mut meanings: Vec<u8> = facts.run.texts.iter().map(|name| loads_data(name).into()).collect();
        for (names, meaning) in [(ALLOCATION, 2), (SYNCHRONISATION, 3)] {
            for number in names.iter().filter_map(|name| facts.run.texts.find(name)) {
                meanings[number as usize] = meaning;
            }
        }
        let mut unions: [Vec<Interval>; 3] = Default::default();
        for event in rank.host.iter().filter(|event| trusted(event.flag) && event.dur >= 0) {
            let is_call = matches!(event.kind, HostKind::Runtime | HostKind::Driver);
            // Python frames of a loader span the whole loop; operators, annotations and spans are about loading only.
            let counts = |meaning| if meaning == 1 { event.kind != HostKind::Python } else { is_call };
            match meanings[event.name as usize] {
                0 => {}
                meaning if counts(meaning) => unions[meaning as usize - 1].push((event.ts, event.end())),
                _ => {}
            }
        }
        let [loading, allocation, synchronisation] = unions.map(|mut intervals| {
            intervals.sort_unstable();
            merge(intervals)
        });
        let of_rank = facts.analyses.ranks.iter().find(|of| of.rank == rank.events.info.rank);
        let named_step = |name: &str| name.to_lowercase().ends_with("step");
        let steps = of_rank.into_iter().flat_map(|of| &of.steps);
        let steps =
            steps.filter(|steps| steps.on == "host" && named_step(&steps.name)).flat_map(|steps| &steps.instances);
        let mut steps: Vec<i64> = steps.map(|step| step.ts.saturating_add(step.dur)).collect();
        steps.sort_unstable();
        Host { loading, allocation, synchronisation, steps }
    }
}

fn contains(union: &[Interval], at: i64) -> bool {
    let after = union.partition_point(|interval| interval.0 <= at);
    after > 0 && union[after - 1].1 >= at
}

/// The idle time of every device, by cause.
fn measure(facts: &Facts<'_>) -> Vec<Idle> {
    let mut all = Vec::new();
    for rank in facts.works {
        let host = Host::of(facts, rank);
        let (loading, allocation) = (Coverage::new(&host.loading), Coverage::new(&host.allocation));
        for (device, streams) in rank.devices() {
            let mut order: Vec<usize> = streams.iter().flat_map(|stream| stream.range.clone()).collect();
            order.sort_unstable_by_key(|&at| (rank.work[at].ts, rank.work[at].end()));
            let mut kernels: Vec<i64> = Vec::new();
            let mut idle = Idle {
                rank: rank.events.info.rank,
                device,
                span_ns: 0,
                ns: [0; CAUSES],
                gaps: [0; CAUSES],
                worst: [(0, None); CAUSES],
                kernel_ns: 0,
            };
            let Some(&first) = order.first() else { continue };
            let mut reach = rank.work[first].ts;
            for at in order {
                let work = &rank.work[at];
                let event = &rank.events.device[work.event as usize];
                if event.class == Class::Compute {
                    kernels.push(work.dur);
                }
                if work.ts > reach {
                    let link = Link { track: event.track, from_ns: reach, to_ns: work.ts };
                    let loaded = loading.within(reach, work.ts);
                    let allocated = allocation.within(reach, work.ts).min(work.ts - reach - loaded);
                    idle.add(Cause::Loading, loaded, link);
                    idle.add(Cause::Allocation, allocated, link);
                    let rest = work.ts - reach - loaded - allocated;
                    let launched_late = rank.call(work).is_some_and(|call| call.ts > reach);
                    let step_ends = host.steps.partition_point(|&end| end < reach);
                    let cause = if !launched_late {
                        Cause::Unexplained
                    } else if contains(&host.synchronisation, reach) {
                        Cause::Synchronisation
                    } else if host.steps.get(step_ends).is_some_and(|&end| end < work.ts) {
                        Cause::BetweenSteps
                    } else if rest >= LONG_GAP_NS {
                        Cause::HostWork
                    } else {
                        Cause::Launches
                    };
                    idle.add(cause, rest, link);
                }
                reach = reach.max(work.end());
            }
            idle.span_ns = reach - rank.work[first].ts;
            if !kernels.is_empty() {
                let middle = kernels.len() / 2;
                idle.kernel_ns = *kernels.select_nth_unstable(middle).1;
            }
            all.push(idle);
        }
    }
    all
}

/// Findings about idle devices.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let all = measure(facts);
    let of = |hit: &Hit| all.iter().find(|idle| (idle.rank, Some(idle.device)) == (hit.rank, hit.device));
    let gaps = |hit: &Hit, cause: Cause| of(hit).map_or(0, |idle| idle.gaps[cause as usize]);
    let longest = |hit: &Hit, cause: Cause| of(hit).map_or(0, |idle| idle.worst[cause as usize].0);
    let hits = |cause: Cause| all.iter().map(move |idle| idle.hit(cause)).collect::<Vec<_>>();
    let path = |rank: i64| match facts.host_bound(rank) {
        Some(share) if share >= 0.5 => format!("; the host bounds {} of the critical path", percent(share)),
        _ => String::new(),
    };
    let launches = facts.finding("launch_bound", LEAST_LAUNCHES, hits(Cause::Launches), |worst, count| {
        let kernel = of(worst).map_or(0, |idle| idle.kernel_ns);
        let try_this = if kernel < SHORT_KERNEL_NS {
            "fuse them (torch.compile) or replay them from CUDA graphs"
        } else {
            "do less on the host between launches, or launch further ahead"
        };
        format!(
            "{} {} {} for the host in {} between kernels of {} (median){}: {try_this}.",
            facts.who(worst, count),
            verb(count, "waits", "wait"),
            facts.amount(worst, count),
            counted(gaps(worst, Cause::Launches), "short gap", "short gaps"),
            time(kernel),
            path(worst.rank),
        )
    });
    let host_work = facts.finding("host_work", LEAST, hits(Cause::HostWork), |worst, count| {
        format!(
            "{} {} idle {} in {} of 1 ms or more (longest {}) in which the host launches nothing{}: find what the host does \
             there (Python, input, logging, checkpoints) and move it off the launching thread.",
            facts.who(worst, count),
            verb(count, "is", "are"),
            facts.amount(worst, count),
            counted(gaps(worst, Cause::HostWork), "gap", "gaps"),
            time(longest(worst, Cause::HostWork)),
            path(worst.rank),
        )
    });
    let loading = facts.finding("data_loading", LEAST, hits(Cause::Loading), |worst, count| {
        format!(
            "{} {} {} for training data (longest {}): load it ahead with more workers, prefetching and pinned memory.",
            facts.who(worst, count),
            verb(count, "waits", "wait"),
            facts.amount(worst, count),
            time(longest(worst, Cause::Loading)),
        )
    });
    let allocation = facts.finding("host_allocation", LEAST_ALLOCATION, hits(Cause::Allocation), |worst, count| {
        format!(
            "{} {} idle {} while the host allocates or frees memory (cudaMalloc, cudaFree and the like; longest {}): warm up first, keep sizes \
             steady so that the caching allocator can reuse blocks, or preallocate.",
            facts.who(worst, count),
            verb(count, "is", "are"),
            facts.amount(worst, count),
            time(longest(worst, Cause::Allocation)),
        )
    });
    let synchronisation = facts.finding("synchronisation", LEAST, hits(Cause::Synchronisation), |worst, count| {
        format!(
            "{} {} idle {} after {} that waited for the device (cudaStreamSynchronize and the like): nothing is queued when they return; remove \
             .item(), .cpu(), print and explicit synchronisation from the step, or do them less often.",
            facts.who(worst, count),
            verb(count, "is", "are"),
            facts.amount(worst, count),
            counted(gaps(worst, Cause::Synchronisation), "call", "calls"),
        )
    });
    let between = facts.finding("between_steps", LEAST, hits(Cause::BetweenSteps), |worst, count| {
        format!(
            "{} {} idle {} between steps (longest {}): prepare the next batch while the step runs, and move logging, metrics and \
             scheduling out of the loop.",
            facts.who(worst, count),
            verb(count, "is", "are"),
            facts.amount(worst, count),
            time(longest(worst, Cause::BetweenSteps)),
        )
    });
    let unexplained = facts.finding("idle_unexplained", LEAST_UNEXPLAINED, hits(Cause::Unexplained), |worst, count| {
        format!(
            "{} {} idle {} though work was launched in time, or without a launch on record (longest {}): look at what its streams wait for, and record \
             CUDA synchronisation events.",
            facts.who(worst, count),
            verb(count, "is", "are"),
            facts.amount(worst, count),
            time(longest(worst, Cause::Unexplained)),
        )
    });
    [launches, host_work, loading, allocation, synchronisation, between, unexplained].into_iter().flatten().collect()
}
