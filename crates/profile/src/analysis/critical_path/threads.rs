//! Threads that work for each other: PyTorch runs the backward pass on a thread of its own.
//!
//! An operator of the backward pass has the sequence number of its forward operator: it depends on that. When the thread of the
//! forward pass goes on after a pause in which the other worked for it, it waited for what the other did last.

use rustc_hash::{FxHashMap, FxHashSet};
use trace::schema::Table;
use trace::{Error, Filter, NO_INT, Profile};

use super::Edge;
use super::graph::Graph;

/// Adds the edges between threads.
pub(super) fn link(graph: &mut Graph<'_>, profile: &Profile) -> Result<(), Error> {
    let pairs = pairs(graph, profile)?;
    let chains: FxHashMap<i64, usize> = (0..graph.threads).map(|chain| (track(graph, chain), chain)).collect();
    // Of every two threads that work together: starts of backward operators that depend on the other thread.
    let mut together: FxHashMap<(usize, usize), Vec<u32>> = FxHashMap::default();
    for (forward, backward) in pairs {
        let (Some(from), Some(to)) = (graph.end_of(forward), graph.start_of(backward)) else { continue };
        let of = |event: u32| chains.get(&graph.rank.host[event as usize].track).copied();
        if let (Some(one), Some(other)) = (of(forward), of(backward))
            && one != other
            && graph.depend(from, to, Edge::Dependency)
        {
            together.entry((one, other)).or_default().push(to);
        }
    }
    for ((forward, backward), mut starts) in together {
        starts.sort_unstable();
        wait_for(graph, forward, backward, &starts);
    }
    Ok(())
}

fn track(graph: &Graph<'_>, chain: usize) -> i64 {
    match graph.event(graph.chains[chain].start).0 {
        super::Event::Host(at) => graph.rank.host[at as usize].track,
        super::Event::Device(at) => graph.rank.device[at as usize].track,
    }
}

/// After each pause of the thread `forward` in which `backward` started an operator that depends on it, the former goes on when
/// the latter is done.
fn wait_for(graph: &mut Graph<'_>, forward: usize, backward: usize, starts: &[u32]) {
    let ranges = (graph.chains[forward].clone(), graph.chains[backward].clone());
    for node in ranges.0.start + 1..ranges.0.end {
        if !graph.begins_after_pause(node) {
            continue;
        }
        let (paused, resumed) = (graph.time(node - 1), graph.time(node));
        let first = starts.partition_point(|&start| graph.time(start) < paused);
        if starts.get(first).is_none_or(|&start| graph.time(start) >= resumed) {
            continue;
        }
        let (mut low, mut high) = (ranges.1.start, ranges.1.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if graph.time(middle) <= resumed { low = middle + 1 } else { high = middle }
        }
        // In the middle of a slice it is not done.
        let done = low > ranges.1.start && (low == ranges.1.end || graph.begins_after_pause(low));
        if done {
            graph.depend(low - 1, node, Edge::Dependency);
        }
    }
}

/// Operators of the forward pass and those of the backward pass with the same number, of different threads.
fn pairs(graph: &Graph<'_>, profile: &Profile) -> Result<Vec<(u32, u32)>, Error> {
    let columns = ["track", "ts", "sequence", "forward_thread"];
    let filter = Filter { rank: Some(graph.rank.info.rank), ..Filter::default() };
    // Of the forward pass: the last operator of each number; of the backward pass: the first.
    let mut forward: FxHashMap<i64, (i64, i64)> = FxHashMap::default();
    let mut backward: Vec<(i64, i64, i64)> = Vec::new();
    for rows in profile.chunks(Table::Host, &columns, filter)? {
        let rows = rows?;
        let (track, ts) = (rows.ints("track"), rows.ints("ts"));
        let (sequence, thread) = (rows.ints("sequence"), rows.ints("forward_thread"));
        for row in 0..rows.len() {
            match (sequence[row], thread[row]) {
                (NO_INT, _) => {}
                (number, NO_INT | 0) => {
                    let last = forward.entry(number).or_insert((ts[row], track[row]));
                    *last = (ts[row], track[row]).max(*last);
                }
                (number, _) => backward.push((number, ts[row], track[row])),
            }
        }
    }
    backward.sort_unstable();
    backward.dedup_by_key(|operator| operator.0);
    let wanted: FxHashSet<i64> = backward.iter().map(|operator| operator.0).collect();
    forward.retain(|number, _| wanted.contains(number));
    let place: FxHashMap<i64, std::ops::Range<usize>> =
        graph.rank.host_tracks().into_iter().map(|range| (graph.rank.host[range.start].track, range)).collect();
    let find = |ts: i64, track: i64| {
        let range = place.get(&track)?.clone();
        let at = range.start + graph.rank.host[range.clone()].partition_point(|event| event.ts < ts);
        (at < range.end && graph.rank.host[at].ts == ts).then_some(at as u32)
    };
    let pair = |&(number, ts, track): &(i64, i64, i64)| {
        let &(forward_ts, forward_track) = forward.get(&number)?;
        (forward_track != track).then_some((find(forward_ts, forward_track)?, find(ts, track)?))
    };
    Ok(backward.iter().filter_map(pair).collect())
}
