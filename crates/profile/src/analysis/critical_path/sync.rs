//! Who waits for whom: the host for streams, and streams for each other.

use std::ops::Range;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use trace::schema::Table;
use trace::{Error, Filter, NO_INT, Profile};

use super::Edge;
use super::graph::{Graph, NONE, numbers};
use crate::{DeviceKind, HostKind, Run};

/// A slice is looked for at most this many places back: more is needed only where other threads launch during the wait.
const STEPS_BACK: usize = 64;
/// A wait for the whole device is joined to at most this many streams; a device runs 128 at once.
const MOST_STREAMS: usize = 128;

/// Where waits are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncFrom {
    /// The profiler recorded them (Kineto's `cuda_sync`).
    Records,
    /// They were not recorded. A blocking call is taken to wait for the work that ended last while it ran. A slice that starts more
    /// than 100 µs after its launch, and at most 20 µs after another stream's slice ended, is taken to have waited for that.
    Inferred,
    /// Nothing waits.
    Nothing,
}

/// A recorded wait.
struct Record {
    name: String,
    device: i64,
    stream: i64,
    end: i64,
    correlation: Option<i64>,
    args: Args,
}

/// What Kineto says of a wait.
#[derive(Default, Deserialize)]
struct Args {
    #[serde(default)]
    wait_on_stream: Option<i64>,
    #[serde(default)]
    wait_on_cuda_event_record_corr_id: Option<i64>,
}

/// Adds the edges of all waits. Gives, for each slice of a device (index in [`Graph::device`]) that waits for another stream,
/// when that wait ends at the earliest; and where waits are known from.
pub(super) fn link(
    graph: &mut Graph<'_>,
    run: &Run,
    profile: &Profile,
) -> Result<(FxHashMap<usize, i64>, SyncFrom), Error> {
    let records = read(graph, run, profile)?;
    if records.is_empty() {
        let before = graph.cross.len();
        let ends = ends(graph);
        infer_calls(graph, run, &ends);
        let waits = infer_streams(graph, &ends);
        return Ok((waits, if graph.cross.len() > before { SyncFrom::Inferred } else { SyncFrom::Nothing }));
    }
    let calls = calls(graph);
    let mut launched: FxHashMap<(i64, i64), Vec<Launched>> = FxHashMap::default();
    let mut waits = FxHashMap::default();
    for record in &records {
        let Some(&call) = record.correlation.and_then(|correlation| calls.get(&correlation)) else { continue };
        match record.name.as_str() {
            "Stream Sync" => {
                let streams = graph.streams.get(&(record.device, record.stream)).cloned().unwrap_or_default();
                wait_for_streams(graph, call, record.end, streams);
            }
            "Context Sync" => {
                let of_device = graph.streams.iter().filter(|(key, _)| key.0 == record.device);
                let mut streams: Vec<Range<usize>> = of_device.flat_map(|(_, ranges)| ranges.clone()).collect();
                streams.sort_by_key(|range| range.start);
                streams.truncate(MOST_STREAMS);
                wait_for_streams(graph, call, record.end, streams);
            }
            "Event Sync" | "Stream Wait Event" => {
                let Some(source) = recorded(graph, &calls, &mut launched, record) else { continue };
                let from = graph.device_node(source, true);
                if record.name == "Event Sync" {
                    if let Some(to) = graph.end_of(call) {
                        graph.depend(from, to, Edge::Sync);
                    }
                    continue;
                }
                let Some(next) = next_launch(graph, &mut launched, record, call) else { continue };
                if graph.depend(from, graph.device_node(next, false), Edge::Sync) {
                    let end = graph.device_event(source).end();
                    let wait = waits.entry(next).or_insert(end);
                    *wait = end.max(*wait);
                }
            }
            _ => {}
        }
    }
    Ok((waits, SyncFrom::Records))
}

/// The recorded waits of the rank, in order of their ends.
fn read(graph: &Graph<'_>, run: &Run, profile: &Profile) -> Result<Vec<Record>, Error> {
    let names = numbers(run, &["Stream Sync", "Context Sync", "Event Sync", "Stream Wait Event"]);
    let is_wait = |event: &crate::DeviceEvent| event.kind == DeviceKind::Sync && names[event.name as usize];
    if !graph.rank.device.iter().any(is_wait) {
        return Ok(Vec::new());
    }
    let columns = ["kind", "device", "stream", "ts", "dur", "name", "correlation", "args"];
    let filter = Filter { rank: Some(graph.rank.info.rank), ..Filter::default() };
    let mut records = Vec::new();
    for rows in profile.chunks(Table::Device, &columns, filter)? {
        let rows = rows?;
        for row in 0..rows.len() {
            if rows.text(rows.texts("kind")[row]) != DeviceKind::Sync.word() {
                continue;
            }
            let correlation = rows.ints("correlation")[row];
            records.push(Record {
                name: rows.text(rows.texts("name")[row]).to_owned(),
                device: rows.ints("device")[row],
                stream: rows.ints("stream")[row],
                end: rows.ints("ts")[row].saturating_add(rows.ints("dur")[row].max(0)),
                correlation: (correlation != NO_INT).then_some(correlation),
                // Arguments of another shape say nothing of the wait; the record itself still does.
                args: serde_json::from_str(rows.text(rows.texts("args")[row])).unwrap_or_default(),
            });
        }
    }
    records.sort_by_key(|record| record.end);
    Ok(records)
}

/// Calls of the runtime (else of the driver) by correlation.
fn calls(graph: &Graph<'_>) -> FxHashMap<i64, u32> {
    let mut calls = FxHashMap::default();
    for kind in [HostKind::Runtime, HostKind::Driver] {
        for (at, event) in (0..).zip(&graph.rank.host) {
            if let Some(correlation) = event.correlation.filter(|_| event.kind == kind) {
                calls.entry(correlation).or_insert(at);
            }
        }
    }
    calls
}

/// The call returns after the last slice of each stream that was launched before it.
fn wait_for_streams(graph: &mut Graph<'_>, call: u32, end: i64, streams: Vec<Range<usize>>) {
    let Some(to) = graph.end_of(call) else { return };
    let (called, returned) = (graph.rank.host[call as usize].ts, graph.time(to));
    for stream in streams {
        let after =
            stream.start + graph.device[stream.clone()].partition_point(|&at| graph.rank.device[at as usize].ts <= end);
        let last = (stream.start..after).rev().take(STEPS_BACK).find(|&at| {
            let launched = graph.launch[at];
            let before = launched == NONE || graph.rank.host[launched as usize].ts <= called;
            before && graph.device_event(at).end() <= returned
        });
        if let Some(at) = last {
            graph.depend(graph.device_node(at, true), to, Edge::Sync);
        }
    }
}

/// A launch: when, from which track, and what (index in [`Graph::device`]).
type Launched = (i64, i64, usize);

/// What was launched onto a stream, in order of launches.
fn launched_onto<'l>(
    graph: &Graph<'_>,
    launched: &'l mut FxHashMap<(i64, i64), Vec<Launched>>,
    key: (i64, i64),
) -> &'l [Launched] {
    launched.entry(key).or_insert_with(|| {
        let slices = graph.streams.get(&key).into_iter().flatten().flat_map(Clone::clone);
        let launch = |at: usize| {
            let event = graph.rank.host.get(graph.launch[at] as usize)?;
            Some((event.ts, event.track, at))
        };
        let mut list: Vec<Launched> = slices.filter_map(launch).collect();
        list.sort_unstable();
        list
    })
}

/// The slice that a CUDA event marks: the last that was launched onto its stream before it was recorded.
fn recorded(
    graph: &Graph<'_>,
    calls: &FxHashMap<i64, u32>,
    launched: &mut FxHashMap<(i64, i64), Vec<Launched>>,
    record: &Record,
) -> Option<usize> {
    let call = *calls.get(&record.args.wait_on_cuda_event_record_corr_id?)?;
    let recorded = graph.rank.host[call as usize].ts;
    let list = launched_onto(graph, launched, (record.device, record.args.wait_on_stream?));
    let after = list.partition_point(|launch| launch.0 <= recorded);
    Some(list[..after].last()?.2)
}

/// What the same thread launches next onto the stream that was told to wait.
fn next_launch(
    graph: &Graph<'_>,
    launched: &mut FxHashMap<(i64, i64), Vec<Launched>>,
    record: &Record,
    call: u32,
) -> Option<usize> {
    let call = &graph.rank.host[call as usize];
    let list = launched_onto(graph, launched, (record.device, record.stream));
    let after = list.partition_point(|launch| launch.0 <= call.ts);
    list[after..].iter().take(STEPS_BACK).find(|launch| launch.1 == call.track).map(|launch| launch.2)
}

/// The ends of all slices of devices, in order.
fn ends(graph: &Graph<'_>) -> Vec<(i64, usize)> {
    let mut ends: Vec<(i64, usize)> = (0..graph.device.len()).map(|at| (graph.device_event(at).end(), at)).collect();
    ends.sort_unstable();
    ends
}

/// Without records: a blocking call waits for what ended last while it ran and was launched before it; a copying call for its
/// own copy.
fn infer_calls(graph: &mut Graph<'_>, run: &Run, ends: &[(i64, usize)]) {
    const WAITS: &[&str] = &[
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
    const COPIES: &[&str] = &["cudaMemcpyAsync", "hipMemcpyAsync"];
    let (waits, copies) = (numbers(run, WAITS), numbers(run, COPIES));
    for call in 0..graph.rank.host.len() as u32 {
        let event = &graph.rank.host[call as usize];
        let (is_wait, is_copy) = (waits[event.name as usize], copies[event.name as usize]);
        if !(is_wait || is_copy) || !matches!(event.kind, HostKind::Runtime | HostKind::Driver) {
            continue;
        }
        let Some(to) = graph.end_of(call) else { continue };
        let (called, returned) = (event.ts, event.end());
        let after = ends.partition_point(|end| end.0 <= returned);
        let during = ends[..after].iter().rev().take_while(|end| end.0 >= called).take(STEPS_BACK);
        let source = during.map(|end| end.1).find(|&at| {
            let launch = graph.launch[at];
            launch == call || (is_wait && launch != NONE && graph.rank.host[launch as usize].ts <= called)
        });
        if let Some(at) = source {
            graph.depend(graph.device_node(at, true), to, Edge::Sync);
        }
    }
}

/// From the end of a launch call to the start of what it launched: more than this is no delay of the launch (HTA's cutoff).
const LONGEST_LAUNCH_NS: i64 = 100_000;
/// From the end of what a stream waits for to the start of what waits: more than this and it waited for something else.
const LONGEST_WAKE_NS: i64 = 20_000;

/// Without records: a slice that was launched onto an idle stream long ago and starts just after one of another stream of its
/// device ended, waited for that.
fn infer_streams(graph: &mut Graph<'_>, ends: &[(i64, usize)]) -> FxHashMap<usize, i64> {
    let mut waits = FxHashMap::default();
    for at in 0..graph.device.len() {
        let event = *graph.device_event(at);
        let Some(call) = graph.rank.host.get(graph.launch[at] as usize) else { continue };
        let earliest = call.ts.max(event.ts.saturating_sub(LONGEST_WAKE_NS));
        let before =
            at.checked_sub(1).map(|before| graph.device_event(before)).filter(|before| before.track == event.track);
        if event.ts.saturating_sub(call.end()) <= LONGEST_LAUNCH_NS
            || before.is_some_and(|before| before.end() >= earliest)
        {
            continue;
        }
        let after = ends.partition_point(|end| end.0 <= event.ts);
        let recent = ends[..after].iter().rev().take_while(|end| end.0 >= earliest).take(STEPS_BACK);
        let source = recent.map(|end| (end.0, end.1)).find(|&(_, other)| {
            let other = graph.device_event(other);
            other.device == event.device && other.track != event.track && other.dur > 0
        });
        if let Some((end, other)) = source
            && graph.depend(graph.device_node(other, true), graph.device_node(at, false), Edge::Sync)
        {
            waits.insert(at, end);
        }
    }
    waits
}
