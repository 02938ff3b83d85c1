//! Exact analyses of a profile: everything that a report or a dashboard shows.
//!
//! [`analyse`] computes all of them; each module's functions compute one. Times are integer nanoseconds, intervals are half-open
//! (`[ts, ts + dur)`), time spent is measured on unions of intervals, and an event of duration 0 is legal: it counts, and takes
//! no time. Events with lost times or negative durations are in no interval; [`Temporal`] counts them.
//!
//! Definitions are those of Holistic Trace Analysis (HTA), in exact ns. [`Options::hta_compat`] reproduces HTA 0.5.0 instead:
//! its filter, its rounding to µs and its classes.

mod activity;
mod annotations;
mod compat;
pub mod critical_path;
pub mod diff;
pub mod findings;
mod idle;
mod intervals;
mod kernels;
mod launch;
mod memory;
mod precision;
mod precision_rules;
mod queue;
mod stats;
mod stragglers;
#[cfg(test)]
mod synthetic;
mod temporal;
mod threads;
mod utilisation;
mod work;

use std::thread;

use serde::Serialize;
use trace::{Error, Profile};

use kernels::KernelRuns;
use temporal::Unions;
use utilisation::OnNode;
use work::Rank;

use crate::Run;

pub use activity::{Activity, ActivityPart};
pub use annotations::{Annotation, Step, Steps, collapse, histogram};
pub use idle::{Idle, StreamIdle};
pub use kernels::{Kernel, KernelTable, Part};
pub use launch::{LaunchPair, LaunchStatistics, Outliers};
pub use memory::MemoryOperation;
pub use precision::{PrecisionPart, Precisions};
pub use queue::StreamQueue;
pub use stats::{Bin, Distribution, Histogram, Summary};
pub use stragglers::{Straggler, Stragglers};
pub use temporal::{DeviceTemporal, KernelType, Overlap, Temporal};
pub use utilisation::{Core, CpuUtilisation, DeviceUtilisation, NodeUtilisation, Series};

/// How to analyse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    /// Reproduce HTA 0.5.0's filter, rounding and classes.
    pub hta_compat: bool,
    /// Names in top lists; the rest is one part.
    pub top: usize,
    /// Events that fit into a stream's queue; a launch call blocks when it is full.
    pub queue_limit: i64,
    /// Gaps below this between events that were launched in time are the device's own, ns. HTA's documentation says 30 ns, but its
    /// code compares 30 with times in µs: what it means, and computes, is 30 µs; so does this default.
    pub kernel_wait_ns: i64,
    /// Launch calls longer than this are outliers, ns.
    pub runtime_cutoff_ns: i64,
    /// Delays between call and event longer than this are outliers, ns.
    pub launch_delay_cutoff_ns: i64,
    /// Buckets of utilisation over time.
    pub buckets: usize,
    /// Bins of histograms.
    pub bins: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            hta_compat: false,
            top: 15,
            queue_limit: 1024,
            kernel_wait_ns: 30_000,
            runtime_cutoff_ns: 50_000,
            launch_delay_cutoff_ns: 100_000,
            buckets: 200,
            bins: 30,
        }
    }
}

/// What a report shows.
#[derive(Clone, Debug, Serialize)]
pub struct Analyses {
    /// How they were computed.
    pub options: Options,
    /// Each rank's own, by rank.
    pub ranks: Vec<RankAnalyses>,
    /// Kinds of work and their overlaps, over all ranks.
    pub kernel_types: Vec<KernelType>,
    /// Kernels, all ranks together; shares of span are of the sum of the ranks' spans.
    pub kernels: KernelTable,
    /// What devices did, all ranks together.
    pub activity: Activity,
    /// Precision of kernels, all ranks together.
    pub precisions: Precisions,
    /// Utilisation of nodes.
    pub nodes: Vec<NodeUtilisation>,
    /// Ranks that make others wait.
    pub stragglers: Stragglers,
}

/// What a report shows of one rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankAnalyses {
    /// The rank.
    pub rank: i64,
    /// Where its time went, all devices together.
    pub temporal: Temporal,
    /// The same for each device.
    pub devices: Vec<DeviceTemporal>,
    /// Kinds of work and their overlaps.
    pub kernel_types: Vec<KernelType>,
    /// Communication behind computation.
    pub overlap: Overlap,
    /// Kernels, copies and fills by name.
    pub kernels: KernelTable,
    /// Why each stream was idle.
    pub idle: Vec<StreamIdle>,
    /// Launches.
    pub launches: LaunchStatistics,
    /// Queue of each stream.
    pub queues: Vec<StreamQueue>,
    /// Copies and fills by direction.
    pub memory: Vec<MemoryOperation>,
    /// Steps, by collapsed name.
    pub steps: Vec<Steps>,
    /// All annotations, by the name that the source writes, longest sum first.
    pub annotations: Vec<Annotation>,
    /// Utilisation of each device.
    pub utilisation: Vec<DeviceUtilisation>,
    /// Utilisation of processors.
    pub cpu: CpuUtilisation,
    /// Precision of kernels.
    pub precisions: Precisions,
    /// What devices did.
    pub activity: Activity,
}

/// Computes everything that a report shows, of the ranks in `run` (all, or one). `run` needs the host's slices
/// ([`Host::Slices`](crate::Host::Slices)); counters and operands are read from `profile` as they are needed.
pub fn analyse(run: &Run, profile: &Profile, options: &Options) -> Result<Analyses, Error> {
    let works: Vec<Rank<'_>> = run.ranks.iter().map(|events| Rank::new(run, events, options)).collect();
    let mut ranks = Vec::with_capacity(works.len());
    let mut on_nodes = Vec::with_capacity(works.len());
    let mut all_runs: Option<KernelRuns> = None;
    for work in &works {
        let (analyses, runs, on_node) = analyse_rank(work, profile)?;
        ranks.push(analyses);
        on_nodes.push(on_node);
        match &mut all_runs {
            None => all_runs = Some(runs),
            Some(all) => all.add(runs),
        }
    }
    let kernels = match (&ranks[..], all_runs) {
        ([one], _) => one.kernels.clone(),
        (_, None) => KernelTable::default(),
        (_, Some(mut all)) => all.table(&run.texts, options.top),
    };
    Ok(Analyses {
        options: options.clone(),
        kernel_types: temporal::sum_kernel_types(ranks.iter().map(|rank| &rank.kernel_types[..])),
        kernels,
        activity: Activity::sum(ranks.iter().map(|rank| &rank.activity)),
        precisions: Precisions::sum(ranks.iter().map(|rank| &rank.precisions)),
        nodes: utilisation::nodes(&on_nodes, options.buckets),
        stragglers: stragglers::stragglers(&works),
        ranks,
    })
}

/// One rank's own analyses, and what those of all ranks together are made of. Two threads share the work.
fn analyse_rank<'r>(rank: &Rank<'r>, profile: &Profile) -> Result<(RankAnalyses, KernelRuns, OnNode<'r>), Error> {
    let options = rank.options;
    thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<_, Error> {
            let precisions = precision::precisions(rank, profile)?;
            let window = utilisation::window(rank);
            let (utilisation, devices) = utilisation::devices(rank, window);
            let cpu = utilisation::cpu(rank, profile, window)?;
            Ok((precisions, window, utilisation, devices, cpu, launch::launches(rank), activity::activity(rank)))
        });
        let unions = Unions::of(rank, &rank.streams);
        let temporal = temporal::temporal(rank, &unions, rank.work.iter(), None);
        let mut runs = KernelRuns::of(rank, temporal.span_ns);
        let kernels = runs.table(&rank.run.texts, options.top);
        let (annotations, steps) = annotations::annotations(rank, &unions.busy);
        let (kernel_types, devices) = (temporal::kernel_types(&unions), temporal::devices(rank, &temporal));
        let (idle, queues, memory) = (idle::idle(rank), queue::queues(rank), memory::operations(rank));
        let (precisions, window, utilisation, busy, cpu, launches, activity) =
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let info = &rank.events.info;
        let analyses = RankAnalyses {
            rank: info.rank,
            overlap: temporal::overlap(&temporal),
            temporal,
            devices,
            kernel_types,
            kernels,
            idle,
            launches,
            queues,
            memory,
            steps,
            annotations,
            utilisation,
            cpu,
            precisions,
            activity,
        };
        let (rank, host, offset_ns) = (info.rank, info.host.as_deref(), info.offset_ns);
        Ok((analyses, runs, OnNode { rank, host, offset_ns, window, devices: busy }))
    })
}
