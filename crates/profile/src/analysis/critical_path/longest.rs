//! The longest path through the graph, in one pass: each node once, after all nodes that it depends on.

use rustc_hash::FxHashMap;

use super::Edge;
use super::graph::{Graph, NONE};

/// How the longest path to a node arrives there.
#[derive(Clone, Copy)]
struct Arrival {
    /// Length of the path, ns; below 0 while it is not known.
    length: i64,
    from: u32,
    edge: Edge,
}

const UNKNOWN: Arrival = Arrival { length: -1, from: NONE, edge: Edge::Dependency };

/// A step of the path: an edge and the node where it ends.
pub(super) struct Step {
    pub from: u32,
    pub to: u32,
    pub edge: Edge,
}

/// The longest path, in order of time; empty if there is no edge. Of paths of equal length the one that ends first is taken, and
/// at each node the edge along its thread before others.
pub(super) fn longest_path(graph: &mut Graph<'_>) -> Vec<Step> {
    // Stable: edges to the same node stay in the order in which they were added.
    graph.cross.sort_by_key(|cross| cross.to);
    let mut search = Search {
        arrivals: vec![UNKNOWN; graph.len()],
        next: graph.chains.iter().map(|chain| chain.start).collect(),
        next_cross: Vec::new(),
        waiting: FxHashMap::default(),
        graph,
    };
    search.next_cross = search
        .graph
        .chains
        .iter()
        .map(|chain| search.graph.cross.partition_point(|cross| cross.to < chain.start))
        .collect();
    let mut ready: Vec<usize> = (0..search.graph.chains.len()).rev().collect();
    while let Some(chain) = ready.pop() {
        search.advance(chain, true, &mut ready);
    }
    // Chains that wait for each other: that takes edges between equal times, so those no longer count.
    let mut ready: Vec<usize> = (0..search.graph.chains.len()).rev().collect();
    search.waiting.clear();
    while let Some(chain) = ready.pop() {
        search.advance(chain, false, &mut ready);
    }

    let Search { arrivals, graph, .. } = search;
    let longest = arrivals.iter().map(|arrival| arrival.length).max().unwrap_or_default();
    let ends = (0..).zip(&arrivals).filter(|(_, arrival)| arrival.length == longest).map(|(node, _)| node);
    let mut last = ends.min_by_key(|&node: &u32| (graph.time(node), node)).unwrap_or(NONE);
    let mut path = Vec::new();
    while let Some(arrival) = arrivals.get(last as usize).filter(|arrival| arrival.from != NONE) {
        path.push(Step { from: arrival.from, to: last, edge: arrival.edge });
        last = arrival.from;
    }
    path.reverse();
    path
}

struct Search<'g, 'r> {
    graph: &'g Graph<'r>,
    arrivals: Vec<Arrival>,
    /// Of each chain: the next node, and the next cross edge that may end there.
    next: Vec<u32>,
    next_cross: Vec<usize>,
    /// Chains that wait for a node.
    waiting: FxHashMap<u32, Vec<usize>>,
}

impl Search<'_, '_> {
    /// Walks a chain until it ends or waits for another.
    fn advance(&mut self, chain: usize, with_equal_times: bool, ready: &mut Vec<usize>) {
        let range = self.graph.chains[chain].clone();
        while self.next[chain] < range.end {
            let node = self.next[chain];
            let first_cross = self.next_cross[chain];
            let mut best = Arrival { length: 0, ..UNKNOWN };
            if node > range.start
                && let Some((edge, weight, _)) = self.graph.along(node)
            {
                best = Arrival { length: self.arrivals[node as usize - 1].length + weight, from: node - 1, edge };
            }
            let mut at = first_cross;
            while let Some(cross) = self.graph.cross.get(at).filter(|cross| cross.to == node) {
                at += 1;
                let source = self.arrivals[cross.from as usize].length;
                if source < 0 {
                    if with_equal_times || self.graph.time(cross.from) < self.graph.time(node) {
                        self.waiting.entry(cross.from).or_default().push(chain);
                        return;
                    }
                    continue;
                }
                let length = source + self.graph.weight(*cross);
                if length > best.length || best.from == NONE {
                    best = Arrival { length, from: cross.from, edge: cross.edge };
                }
            }
            self.arrivals[node as usize] = best;
            self.next[chain] = node + 1;
            self.next_cross[chain] = at;
            if !self.waiting.is_empty()
                && let Some(chains) = self.waiting.remove(&node)
            {
                ready.extend(chains);
            }
        }
    }
}
