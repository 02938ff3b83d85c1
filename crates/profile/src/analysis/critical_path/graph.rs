//! The graph: starts and ends of slices, and the edges between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Edge;
use crate::analysis::work::{is_bounded, trusted};
use crate::{HostEvent, HostKind, RankEvents, Run};

/// Open slices: end, and index of the event.
type Open = BinaryHeap<(Reverse<i64>, u32)>;

/// No node, no event.
pub(super) const NONE: u32 = u32::MAX;

/// An idle time between two kernels of a stream that is at least this long (HTA: 1500 µs) is no delay of the device, even if the
/// second one was launched in time: whatever it waited for is not on record, so it weighs nothing.
const LONGEST_KERNEL_GAP_NS: i64 = 1_500_000;

/// Calls that wait for the device, as HTA lists them (and their HIP and driver namesakes): the wait is the device's time.
const BLOCKING: &[&str] = &[
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipEventQuery",
    "hipEventSynchronize",
    "hipMemcpy",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
];

/// An edge that does not follow a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cross {
    pub from: u32,
    pub to: u32,
    pub edge: Edge,
}

/// Nodes in chains: the starts and ends of a thread's slices in order of time, then start and end of each slice of a stream.
pub(super) struct Graph<'r> {
    pub rank: &'r RankEvents,
    /// Of each host node: its event, twice, plus 1 for its end.
    host: Vec<u32>,
    /// Of each host node: the slice that the time since the node before belongs to; none where the thread was between slices.
    owner: Vec<u32>,
    /// Of each host node: whether the time since the node before is a wait for the device, or belongs to no slice.
    unweighted: Vec<bool>,
    /// Of each event of the host: its nodes.
    host_start: Vec<u32>,
    host_end: Vec<u32>,
    /// Slices of devices that take part, stream by stream in order of start: node `host.len() + 2 * at` starts the one at `at`.
    pub device: Vec<u32>,
    /// Of each of them, the event that launched it.
    pub launch: Vec<u32>,
    /// Nodes of each chain.
    pub chains: Vec<std::ops::Range<u32>>,
    /// Number of chains that are threads; the others are streams.
    pub threads: usize,
    /// Streams, as ranges of `device`, by device and stream number.
    pub streams: FxHashMap<(i64, i64), Vec<std::ops::Range<usize>>>,
    /// Slices that load data.
    pub loading: FxHashSet<u32>,
    pub cross: Vec<Cross>,
    /// Edges left out because their end is before their start: clocks of host and device disagree.
    pub skewed: u64,
}

/// Which times: slices of the host that start in them (both ends included), and what those launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub from: i64,
    pub to: i64,
}

impl Times {
    pub fn hold(self, ts: i64) -> bool {
        (self.from..=self.to).contains(&ts)
    }
}

/// For every number of the run's texts, whether it is one of these names.
pub(super) fn numbers(run: &Run, names: &[&str]) -> Vec<bool> {
    let mut is_one = vec![false; run.texts.len()];
    for number in names.iter().filter_map(|name| run.texts.find(name)) {
        is_one[number as usize] = true;
    }
    is_one
}

/// Whether a slice of this name loads training data: PyTorch's `enumerate(DataLoader)#…`, our trainer's `data_loading`.
pub(in crate::analysis) fn loads_data(name: &str) -> bool {
    ["DataLoader", "dataloader", "data_loader", "data_loading", "data loading", "load_batch"]
        .iter()
        .any(|word| name.contains(word))
}

impl<'r> Graph<'r> {
    /// Nodes of the slices that start in `times`, and the edges within threads. The edges of devices come later, see
    /// [`Graph::link_devices`].
    pub fn new(run: &Run, rank: &'r RankEvents, times: Times) -> Self {
        let launches = launches(rank);
        let mut graph = Graph {
            rank,
            host: Vec::new(),
            owner: Vec::new(),
            unweighted: Vec::new(),
            host_start: vec![NONE; rank.host.len()],
            host_end: vec![NONE; rank.host.len()],
            device: Vec::new(),
            launch: Vec::new(),
            chains: Vec::new(),
            threads: 0,
            streams: FxHashMap::default(),
            loading: FxHashSet::default(),
            cross: Vec::new(),
            skewed: 0,
        };
        graph.add_threads(run, times, &launches);
        graph.add_streams(times, &launches);
        graph
    }

    fn add_threads(&mut self, run: &Run, times: Times, launches: &[u32]) {
        let loading: Vec<bool> = run.texts.iter().map(loads_data).collect();
        let blocking = numbers(run, BLOCKING);
        // A slice without duration carries no time; it matters only if it launched something.
        let empty = |event: &HostEvent| event.dur == 0;
        let calls = launches.iter().copied().filter(|&at| at != NONE);
        let needed: FxHashSet<u32> = calls.filter(|&at| empty(&self.rank.host[at as usize])).collect();

        for track in self.rank.host_tracks() {
            let first = self.host.len() as u32;
            // Slices that are open: at the top the one that ends first, and of equal ends the one that started last. That is the
            // innermost; where slices overlap partly, the order of their ends decides.
            let mut open: Open = BinaryHeap::new();
            for at in track {
                let event = &self.rank.host[at];
                let is_loading = loading[event.name as usize];
                let takes_part = match event.kind {
                    HostKind::Operator | HostKind::Runtime | HostKind::Driver | HostKind::Span => true,
                    HostKind::Annotation => is_loading,
                    _ => false,
                };
                let reliable = event.dur >= 0 && trusted(event.flag) && is_bounded(event.ts, event.dur);
                if !takes_part || !reliable || !times.hold(event.ts) {
                    continue;
                }
                let at = at as u32;
                if empty(event) && !needed.contains(&at) {
                    continue;
                }
                self.close(&mut open, first, event.ts, &blocking);
                let inside = open.peek().map(|top| top.1);
                if is_loading || inside.is_some_and(|outer| self.loading.contains(&outer)) {
                    self.loading.insert(at);
                }
                self.push_host(first, 2 * at, inside, false);
                self.host_start[at as usize] = self.host.len() as u32 - 1;
                open.push((Reverse(event.end()), at));
            }
            self.close(&mut open, first, i64::MAX, &blocking);
            let last = self.host.len() as u32;
            if last > first {
                self.chains.push(first..last);
            }
        }
        self.threads = self.chains.len();
    }

    /// Adds the ends that are not after `until`.
    fn close(&mut self, open: &mut Open, first: u32, until: i64, blocking: &[bool]) {
        while let Some(&(Reverse(end), top)) = open.peek()
            && end <= until
        {
            let event = &self.rank.host[top as usize];
            let waits = matches!(event.kind, HostKind::Runtime | HostKind::Driver) && blocking[event.name as usize];
            self.push_host(first, 2 * top + 1, Some(top), waits);
            self.host_end[top as usize] = self.host.len() as u32 - 1;
            open.pop();
        }
    }

    fn push_host(&mut self, first: u32, node: u32, owner: Option<u32>, waits: bool) {
        let starts_chain = self.host.len() as u32 == first;
        self.host.push(node);
        self.owner.push(owner.unwrap_or(NONE));
        self.unweighted.push(waits || owner.is_none() || starts_chain);
    }

    fn add_streams(&mut self, times: Times, launches: &[u32]) {
        let offset = self.host.len() as u32;
        for track in self.rank.device_tracks() {
            let first = self.device.len();
            for at in track {
                let event = &self.rank.device[at];
                let launch = launches[at];
                let started = if launch == NONE { event.ts } else { self.rank.host[launch as usize].ts };
                if event.is_work() && event.dur >= 0 && is_bounded(event.ts, event.dur) && times.hold(started) {
                    self.device.push(at as u32);
                    self.launch.push(launch);
                }
            }
            let last = self.device.len();
            if last > first {
                let event = self.device_event(first);
                self.streams.entry((event.device, event.stream)).or_default().push(first..last);
                self.chains.push(offset + 2 * first as u32..offset + 2 * last as u32);
            }
        }
    }

    /// Edges to and between the slices of devices. `waits` are edges of synchronisation from one stream to another, by the
    /// slice (index in `device`) that waits, with the time that the wait ends at the earliest. With `stream_order`, a slice depends on
    /// the one before on its stream whatever else it waited for.
    pub fn link_devices(&mut self, waits: &FxHashMap<usize, i64>, stream_order: bool) {
        for chain in self.threads..self.chains.len() {
            let chain = self.chains[chain].clone();
            let first = (chain.start - self.host.len() as u32) as usize / 2;
            let mut before: Option<usize> = None;
            for at in first..first + chain.len() / 2 {
                let (start, end) = (self.device_event(at).ts, self.device_event(at).end());
                let before_end = before.map(|before| self.device_event(before).end());
                let wait = waits.get(&at).copied();
                let launch = self.launched_by(at).filter(|&node| self.time(node) <= start);
                let late = launch.filter(|&node| {
                    let launched = self.time(node);
                    before_end.is_none_or(|end| end < launched) && wait.is_none_or(|end| end < launched)
                });
                // The slice before, if it had ended and no wait ended later.
                let ended = before.zip(before_end).filter(|&(_, end)| end <= start);
                let follows = ended.filter(|&(_, end)| wait.is_none_or(|wait| wait < end));
                let to = self.device_node(at, false);
                let (from, edge) = match (late, follows) {
                    (Some(launch), _) => (Some(launch), Edge::Launch),
                    (None, Some((before, end))) => {
                        let edge =
                            if start - end < LONGEST_KERNEL_GAP_NS { Edge::KernelKernel } else { Edge::Dependency };
                        (Some(self.device_node(before, true)), edge)
                    }
                    (None, None) => (launch.filter(|_| wait.is_none()), Edge::Launch),
                };
                self.cross.extend(from.map(|from| Cross { from, to, edge }));
                if stream_order {
                    match before {
                        // Records of a stream may overlap by some ns: then the one before counts until this one starts.
                        Some(before) if ended.is_none() => {
                            self.cross.push(Cross { from: self.device_node(before, false), to, edge: Edge::Operator });
                        }
                        Some(before) if late.is_some() || follows.is_none() => {
                            self.cross.push(Cross { from: self.device_node(before, true), to, edge: Edge::Dependency });
                        }
                        _ => {}
                    }
                }
                if before_end.is_none_or(|before| before <= end) {
                    before = Some(at);
                }
            }
        }
    }

    /// Adds an edge without weight, unless it goes back in time.
    pub fn depend(&mut self, from: u32, to: u32, edge: Edge) -> bool {
        let forward = self.time(from) <= self.time(to);
        if forward {
            self.cross.push(Cross { from, to, edge });
        } else {
            self.skewed += 1;
        }
        forward
    }

    /// The start of the call that launched the slice at `at` of `device`, if it takes part.
    pub fn launched_by(&self, at: usize) -> Option<u32> {
        let launch = self.launch[at];
        (launch != NONE).then(|| self.host_start[launch as usize]).filter(|&node| node != NONE)
    }

    /// The slice at `at` of `device`.
    pub fn device_event(&self, at: usize) -> &crate::DeviceEvent {
        &self.rank.device[self.device[at] as usize]
    }

    pub fn device_node(&self, at: usize, end: bool) -> u32 {
        self.host.len() as u32 + 2 * at as u32 + end as u32
    }

    /// The end of a slice of the host, if it takes part.
    pub fn end_of(&self, event: u32) -> Option<u32> {
        Some(self.host_end[event as usize]).filter(|&node| node != NONE)
    }

    /// The start of a slice of the host, if it takes part.
    pub fn start_of(&self, event: u32) -> Option<u32> {
        Some(self.host_start[event as usize]).filter(|&node| node != NONE)
    }

    /// Whether this node of a thread starts a slice after a time without any.
    pub fn begins_after_pause(&self, node: u32) -> bool {
        self.owner.get(node as usize) == Some(&NONE)
    }

    /// How many slices of devices are joined with their launch.
    pub fn launches(&self) -> u64 {
        (0..self.device.len()).filter(|&at| self.launched_by(at).is_some()).count() as u64
    }

    pub fn len(&self) -> usize {
        self.host.len() + 2 * self.device.len()
    }

    /// The event of a node (of the host or of devices), and whether the node is its end.
    pub fn event(&self, node: u32) -> (super::Event, bool) {
        let node = node as usize;
        match self.host.get(node) {
            Some(&host) => (super::Event::Host(host / 2), host % 2 == 1),
            None => {
                let at = node - self.host.len();
                (super::Event::Device(self.device[at / 2]), at % 2 == 1)
            }
        }
    }

    pub fn time(&self, node: u32) -> i64 {
        let (ts, end, is_end) = match self.event(node) {
            (super::Event::Host(at), is_end) => {
                let event = &self.rank.host[at as usize];
                (event.ts, event.end(), is_end)
            }
            (super::Event::Device(at), is_end) => {
                let event = &self.rank.device[at as usize];
                (event.ts, event.end(), is_end)
            }
        };
        if is_end { end } else { ts }
    }

    /// The weight of an edge, ns.
    pub fn weight(&self, cross: Cross) -> i64 {
        match cross.edge {
            Edge::Launch | Edge::KernelKernel | Edge::Operator => self.time(cross.to) - self.time(cross.from),
            Edge::Dependency | Edge::Sync => 0,
        }
    }

    /// The edge from the node before in the same chain (not for the first of a chain): its kind, its weight (ns), and the
    /// slice it belongs to. None between slices of a stream.
    pub fn along(&self, node: u32) -> Option<(Edge, i64, Option<super::Event>)> {
        let at = node as usize;
        if at >= self.host.len() {
            let (event, is_end) = self.event(node);
            return is_end.then(|| (Edge::Operator, self.time(node) - self.time(node - 1), Some(event)));
        }
        let owner = self.owner[at];
        let weight = if self.unweighted[at] { 0 } else { self.time(node) - self.time(node - 1) };
        Some(match owner {
            NONE => (Edge::Dependency, 0, None),
            owner => (Edge::Operator, weight, Some(super::Event::Host(owner))),
        })
    }
}

/// For all work of devices, the call that launched it: of those with its correlation the latest that is not after it
/// (else the first); calls of the runtime before calls of the driver, which lie within them.
fn launches(rank: &RankEvents) -> Vec<u32> {
    let is_call = |event: &HostEvent| matches!(event.kind, HostKind::Runtime | HostKind::Driver);
    let mut calls: Vec<(i64, bool, i64, u32)> = (0..)
        .zip(&rank.host)
        .filter(|(_, event)| is_call(event))
        .filter_map(|(at, event)| Some((event.correlation?, event.kind == HostKind::Driver, event.ts, at)))
        .collect();
    calls.sort_unstable();
    let find = |correlation: i64, ts: i64| {
        let from = calls.partition_point(|call| call.0 < correlation);
        let &(_, driver, _, first) = calls.get(from).filter(|call| call.0 == correlation)?;
        let to = calls.partition_point(|call| (call.0, call.1, call.2) <= (correlation, driver, ts));
        Some(if to > from { calls[to - 1].3 } else { first })
    };
    rank.device
        .iter()
        .map(|event| event.correlation.filter(|_| event.is_work()).and_then(|id| find(id, event.ts)).unwrap_or(NONE))
        .collect()
}
