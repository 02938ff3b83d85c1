//! The critical path of a rank: the longest chain of work in which each part waits for the one before.
//!
//! Definition of HTA (Holistic Trace Analysis, *Lightweight Critical Path Analysis*), in exact ns. Nodes are the starts and ends of
//! slices. Edges:
//!
//! - [`Edge::Operator`]: time within a slice of a thread or stream. Waiting calls (`cudaStreamSynchronize` …) weigh nothing: what
//!   they wait for does.
//! - [`Edge::Dependency`]: between slices of one thread, or from a thread to another that works for it; weighs nothing.
//! - [`Edge::Launch`]: from the start of a launch call to the start of the slice, if all before it on its stream, and all that it was
//!   told to wait for, had ended before the call.
//! - [`Edge::KernelKernel`]: else, from the end of the slice before on the stream, if that is less than 1.5 ms ago (longer gaps are a
//!   dependency: whatever filled them is not on record).
//! - [`Edge::Sync`]: from the end of a slice to the end of the call that waited for it, or to the start of the slice of another
//!   stream that waited for it; weighs nothing.
//!
//! The path is the longest by weight. Gaps between operators weigh nothing, so its length is at most its span.
//!
//! Where this differs from HTA 0.5.0: a slice launched onto an idle stream has a launch edge even if the host had launched the next
//! one before it began (HTA joins it to the last kernel, however long ago that ended); slices without a launch record take part;
//! several waits of one kernel all count; where waits are not on record, they are inferred ([`SyncFrom::Inferred`]), and each slice
//! of a stream depends on the one before, also if it was launched late, so that the path is no shorter than the work of any stream
//! (with records, a late launch alone counts, and only a wait leads from a device back to the host); a thread that runs the
//! backward pass of another depends on it and it on the thread (HTA leaves threads unconnected).

mod graph;
mod longest;
mod sync;
mod threads;

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{Error, Profile};

pub use sync::SyncFrom;

use super::annotations::collapse;
use crate::{Class, HostKind, RankEvents, Run};
pub(super) use graph::loads_data;
use graph::{Graph, Times};
use longest::{Step, longest_path};

/// How one part of the path leads to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// Time within a slice.
    Operator,
    /// One slice after another on a thread, or on a stream after a long gap; or threads that work for each other.
    Dependency,
    /// From a launch call to what it launched.
    Launch,
    /// From one slice of a stream to the next.
    KernelKernel,
    /// From work of a device to whoever waited for it.
    Sync,
}

/// What bounds a part of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Delays between kernels of a stream.
    KernelKernelOverhead,
    /// Delays between launch and start.
    LaunchOverhead,
    /// Loading of training data.
    DataLoading,
    /// Operators and calls on the host.
    CpuBound,
    /// Computing kernels.
    GpuCompute,
    /// Collectives, and transfers between ranks.
    GpuCommunication,
    /// Copies and fills.
    MemoryCopy,
}

/// A slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// Index in [`RankEvents::host`].
    Host(u32),
    /// Index in [`RankEvents::device`].
    Device(u32),
}

/// A part of the path: an edge of the graph.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// Where it starts: a slice, and whether at its end.
    pub from: (Event, bool),
    /// Where it ends.
    pub to: (Event, bool),
    /// Time of its start, ns on the rank's clock.
    pub from_ns: i64,
    /// Time of its end, ns on the rank's clock.
    pub to_ns: i64,
    /// How it leads on.
    pub edge: Edge,
    /// Its weight, ns: `to_ns - from_ns`, or 0.
    pub ns: i64,
    /// What bounds it; none for what weighs nothing by definition.
    pub bound: Option<Bound>,
    /// The slice that it counts for: of a launch delay the slice launched, of a delay between kernels the first of them.
    pub owner: Option<Event>,
}

/// Time of one bound class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundPart {
    /// What bounds it.
    pub bound: Bound,
    /// Time, ns.
    pub ns: i64,
    /// Share of the path's length, 0 to 1.
    pub share: f64,
}

/// Time of one operator, call or kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamePart {
    /// Its name.
    pub name: String,
    /// What bounds it.
    pub bound: Bound,
    /// Time, ns.
    pub ns: i64,
    /// Parts of the path.
    pub count: u64,
    /// Share of the path's length, 0 to 1.
    pub share: f64,
}

/// The path within one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPath {
    /// Name of the annotation.
    pub name: String,
    /// Its start, ns on the rank's clock.
    pub from_ns: i64,
    /// Its end, ns on the rank's clock.
    pub to_ns: i64,
    /// Length of the path within it, ns.
    pub length_ns: i64,
    /// By bound class.
    pub bounds: Vec<BoundPart>,
}

/// A long part of the path, as a report shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LongPart {
    /// Name of the slice that it counts for.
    pub name: String,
    /// Track of that slice.
    pub track: i64,
    /// What bounds it.
    pub bound: Bound,
    /// Its start, ns on the rank's clock.
    pub from_ns: i64,
    /// Its end, ns on the rank's clock.
    pub to_ns: i64,
}

/// The critical path of a rank.
#[derive(Clone, Debug, Serialize)]
pub struct CriticalPath {
    /// The rank.
    pub rank: i64,
    /// The annotation it is of; none for the whole profile.
    pub annotation: Option<String>,
    /// Its start, ns on the rank's clock.
    pub from_ns: i64,
    /// Its end, ns on the rank's clock.
    pub to_ns: i64,
    /// `to_ns - from_ns`.
    pub span_ns: i64,
    /// Sum of its parts, ns; at most `span_ns`. The rest lies between operators of the host.
    pub length_ns: i64,
    /// By bound class, longest first; the sum is `length_ns`.
    pub bounds: Vec<BoundPart>,
    /// By name and bound class, longest first; the sum is `length_ns`.
    pub names: Vec<NamePart>,
    /// By step, where the source marks steps.
    pub steps: Vec<StepPath>,
    /// Its longest parts, longest first: as many as were asked for.
    pub longest: Vec<LongPart>,
    /// How many parts it has.
    pub parts: u64,
    /// Where waits are known from.
    pub sync_from: SyncFrom,
    /// Slices of devices that are joined with their launch; with none, host and devices are apart, and the path is of one of them.
    pub launches: u64,
    /// Edges left out because they would go back in time: clocks of host and device disagree.
    pub skewed: u64,
    /// All of its parts, in order of time.
    #[serde(skip)]
    pub elements: Vec<Element>,
}

/// What the path is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window<'a> {
    /// The whole profile.
    Whole,
    /// One instance, counted from 0 by start, of a host annotation with this name, or this name after removal of its number
    /// (`ProfilerStep` for `ProfilerStep#12`): slices of the host that start in it, and what they launch.
    Annotation(&'a str, usize),
}

/// The critical path of a rank. None if the rank or the annotation does not exist, or nothing is in it. `run` needs the host's
/// slices. `top` is how many long parts to name.
pub fn critical_path(
    run: &Run,
    profile: &Profile,
    rank: i64,
    window: &Window<'_>,
    top: usize,
) -> Result<Option<CriticalPath>, Error> {
    let Some(events) = run.ranks.iter().find(|events| events.info.rank == rank) else { return Ok(None) };
    let Some((times, annotation)) = times(run, events, window) else { return Ok(None) };
    let mut graph = Graph::new(run, events, times);
    let (waits, sync_from) = sync::link(&mut graph, run, profile)?;
    // Unless waits are on record, the host may have waited for anything: then the device's own order joins its work.
    graph.link_devices(&waits, sync_from != SyncFrom::Records);
    threads::link(&mut graph, profile)?;
    let path = longest_path(&mut graph);
    let elements: Vec<Element> = path.iter().map(|step| element(&graph, step)).collect();
    let (Some(first), Some(last)) = (elements.first(), elements.last()) else { return Ok(None) };
    let (from_ns, to_ns) = (first.from_ns, last.to_ns);
    let length_ns = elements.iter().map(|element| element.ns).sum();
    Ok(Some(CriticalPath {
        rank,
        annotation,
        from_ns,
        to_ns,
        span_ns: to_ns - from_ns,
        length_ns,
        bounds: by_bound(elements.iter().map(|element| (element.bound, element.ns))),
        names: by_name(run, events, &elements, length_ns),
        steps: by_step(run, events, &elements),
        longest: longest(run, events, &elements, top),
        parts: elements.len() as u64,
        sync_from,
        launches: graph.launches(),
        skewed: graph.skewed,
        elements,
    }))
}

fn times(run: &Run, events: &RankEvents, window: &Window<'_>) -> Option<(Times, Option<String>)> {
    let Window::Annotation(name, instance) = window else {
        return Some((Times { from: i64::MIN, to: i64::MAX }, None));
    };
    let is_it = |text: &str| text == *name || collapse(text).0 == *name;
    let mut found: Vec<_> =
        events.host.iter().filter(|event| event.kind == HostKind::Annotation && is_it(run.text(event.name))).collect();
    found.sort_by_key(|event| event.ts);
    let event = found.get(*instance)?;
    Some((Times { from: event.ts, to: event.end() }, Some(run.text(event.name).to_owned())))
}

fn element(graph: &Graph<'_>, step: &Step) -> Element {
    let (from, to) = (graph.event(step.from), graph.event(step.to));
    let (from_ns, to_ns) = (graph.time(step.from), graph.time(step.to));
    let delay = to_ns - from_ns;
    let (ns, bound, owner) = match step.edge {
        Edge::Operator => {
            // Not along a chain: from the start of a slice of a stream to that of the next, which it overlaps.
            let (_, ns, owner) = graph.along(step.to).unwrap_or((step.edge, delay, Some(from.0)));
            let bound = owner.map(|owner| match owner {
                Event::Host(at) if graph.loading.contains(&at) => Bound::DataLoading,
                Event::Host(_) => Bound::CpuBound,
                Event::Device(at) => match graph.rank.device[at as usize].class {
                    Class::Communication => Bound::GpuCommunication,
                    Class::Memory => Bound::MemoryCopy,
                    Class::Compute | Class::NotWork => Bound::GpuCompute,
                },
            });
            (ns, bound, owner)
        }
        Edge::Launch => (delay, Some(Bound::LaunchOverhead), Some(to.0)),
        Edge::KernelKernel => (delay, Some(Bound::KernelKernelOverhead), Some(from.0)),
        Edge::Dependency | Edge::Sync => (0, None, None),
    };
    Element { from, to, from_ns, to_ns, edge: step.edge, ns, bound, owner }
}

fn share(part: i64, whole: i64) -> f64 {
    if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
}

fn by_bound(parts: impl Iterator<Item = (Option<Bound>, i64)>) -> Vec<BoundPart> {
    let mut sums: FxHashMap<Bound, i64> = FxHashMap::default();
    for (bound, ns) in parts {
        if let Some(bound) = bound.filter(|_| ns > 0) {
            *sums.entry(bound).or_default() += ns;
        }
    }
    let whole = sums.values().sum();
    let mut parts: Vec<BoundPart> =
        sums.into_iter().map(|(bound, ns)| BoundPart { bound, ns, share: share(ns, whole) }).collect();
    parts.sort_by_key(|part| (-part.ns, part.bound));
    parts
}

fn slice(events: &RankEvents, event: Event) -> (u32, i64) {
    match event {
        Event::Host(at) => (events.host[at as usize].name, events.host[at as usize].track),
        Event::Device(at) => (events.device[at as usize].name, events.device[at as usize].track),
    }
}

fn by_name(run: &Run, events: &RankEvents, elements: &[Element], whole: i64) -> Vec<NamePart> {
    let mut sums: FxHashMap<(u32, Bound), (i64, u64)> = FxHashMap::default();
    for element in elements.iter().filter(|element| element.ns > 0) {
        if let (Some(owner), Some(bound)) = (element.owner, element.bound) {
            let sum = sums.entry((slice(events, owner).0, bound)).or_default();
            *sum = (sum.0 + element.ns, sum.1 + 1);
        }
    }
    let part = |((name, bound), (ns, count)): ((u32, Bound), (i64, u64))| NamePart {
        name: run.text(name).to_owned(),
        bound,
        ns,
        count,
        share: share(ns, whole),
    };
    let mut parts: Vec<NamePart> = sums.into_iter().map(part).collect();
    parts.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| (&a.name, a.bound).cmp(&(&b.name, b.bound))));
    parts
}

/// Whether an annotation marks a step: it has a number, and its name without it ends in `step`.
fn is_step(name: &str) -> bool {
    let (base, number) = collapse(name);
    number.is_some() && base.len() >= 4 && base.as_bytes()[base.len() - 4..].eq_ignore_ascii_case(b"step")
}

fn by_step(run: &Run, events: &RankEvents, elements: &[Element]) -> Vec<StepPath> {
    let mut known: FxHashMap<u32, bool> = FxHashMap::default();
    let mut steps: Vec<_> = events
        .host
        .iter()
        .filter(|event| event.kind == HostKind::Annotation && event.dur > 0)
        .filter(|event| *known.entry(event.name).or_insert_with(|| is_step(run.text(event.name))))
        .collect();
    steps.sort_by_key(|event| event.ts);
    // Steps follow each other; of those that overlap the first counts.
    let mut end = i64::MIN;
    steps.retain(|event| {
        let follows = event.ts >= end;
        end = if follows { event.end() } else { end };
        follows
    });
    let path = |event: &&crate::HostEvent| {
        let (from_ns, to_ns) = (event.ts, event.end());
        // Ends of elements rise, so those that touch the step are neighbours.
        let first = elements.partition_point(|element| element.to_ns <= from_ns);
        let touching = elements[first..].iter().take_while(|element| element.from_ns < to_ns);
        let inside = touching
            .filter(|element| element.ns > 0)
            .map(|element| (element.bound, element.to_ns.min(to_ns) - element.from_ns.max(from_ns)));
        let bounds = by_bound(inside);
        let length_ns = bounds.iter().map(|part| part.ns).sum();
        StepPath { name: run.text(event.name).to_owned(), from_ns, to_ns, length_ns, bounds }
    };
    steps.iter().map(path).filter(|step| step.length_ns > 0).collect()
}

fn longest(run: &Run, events: &RankEvents, elements: &[Element], top: usize) -> Vec<LongPart> {
    let mut order: Vec<&Element> = elements.iter().filter(|element| element.ns > 0).collect();
    let key = |element: &&Element| (-element.ns, element.from_ns);
    if order.len() > top && top > 0 {
        order.select_nth_unstable_by_key(top - 1, key);
    }
    order.truncate(top);
    order.sort_by_key(key);
    let part = |element: &Element| {
        let (name, track) = slice(events, element.owner?);
        let (from_ns, to_ns) = (element.from_ns, element.to_ns);
        Some(LongPart { name: run.text(name).to_owned(), track, bound: element.bound?, from_ns, to_ns })
    };
    order.into_iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests;
