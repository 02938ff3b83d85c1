//! The critical path against HTA's, on the traces of HTA's own tests.

mod support;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use profile::analysis::critical_path::{Bound, CriticalPath, Edge, Event, SyncFrom, Window, critical_path};
use profile::{Host, Run};
use support::{files, naive, traces};

const FORWARD: &str = "[param|pytorch.model.alex_net|0|0|0|measure|forward]";

fn path_of(set: &Path, window: &Window<'_>) -> (Run, CriticalPath) {
    let dir = tempfile::tempdir().unwrap();
    let profile = naive::import(&files(set), &dir.path().join("p"));
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let path = critical_path(&run, &profile, run.ranks[0].info.rank, window, 5).unwrap().unwrap();
    (run, path)
}

/// Process, thread, start (µs), duration (µs), name.
type Slice = (String, String, i64, i64, String);

/// The slices that the path touches.
fn critical(run: &Run, path: &CriticalPath) -> BTreeSet<Slice> {
    let slice = |event: Event| {
        let (track, ts, dur, name) = match event {
            Event::Host(at) => {
                let event = &run.ranks[0].host[at as usize];
                (event.track, event.ts, event.dur, event.name)
            }
            Event::Device(at) => {
                let event = &run.ranks[0].device[at as usize];
                (event.track, event.ts, event.dur, event.name)
            }
        };
        let track = run.tracks.iter().find(|line| line.track == track).unwrap();
        (track.process.clone(), track.thread.clone(), ts / 1000, dur / 1000, run.text(name).to_owned())
    };
    path.elements.iter().flat_map(|element| [element.from.0, element.to.0]).map(slice).collect()
}

/// The slices that HTA marked.
fn marked(set: &Path) -> BTreeSet<Slice> {
    let mut text = Vec::new();
    let file = std::fs::File::open(&files(set)[0]).unwrap();
    flate2::read::MultiGzDecoder::new(file).read_to_end(&mut text).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let marked = events.filter(|event| event["ph"] == "X" && event["args"]["critical"] == 1);
    let slice = |event: &serde_json::Value| {
        let int = |key: &str| event[key].as_i64().unwrap();
        let name = event["name"].as_str().unwrap().to_owned();
        (event["pid"].to_string(), event["tid"].to_string(), int("ts"), int("dur"), name)
    };
    marked.map(slice).collect()
}

fn edges(path: &CriticalPath, edge: Edge) -> (usize, i64) {
    let of_kind: Vec<i64> =
        path.elements.iter().filter(|element| element.edge == edge).map(|element| element.ns).collect();
    (of_kind.len(), of_kind.iter().sum::<i64>() / 1000)
}

fn us(path: &CriticalPath, bound: Bound) -> i64 {
    path.bounds.iter().find(|part| part.bound == bound).map_or(0, |part| part.ns / 1000)
}

#[test]
fn the_critical_slices_are_those_that_hta_marks() {
    let Some(traces) = traces() else { return };
    let (run, path) = path_of(&traces.join("edge-cases/critical-path-simple-add"), &Window::Whole);
    let (ours, theirs) = (critical(&run, &path), marked(&traces.join("edge-cases/critical-path-simple-add-result")));
    assert_eq!(theirs.len(), 624);
    // HTA gives a slice launched onto an idle stream its launch edge only if no other launch came before the slice began. The
    // last `cudaMemsetAsync` is followed by another launch 2 µs before its fill begins, so in HTA's graph what follows on the
    // stream hangs in the air, and the path stays on the thread for the two launches that come next. With the edge the path
    // takes the fill and its two kernels, which end 112 µs after these.
    let start = 1_694_040_009_799_842;
    let only_hta = [("cudaLaunchKernel", 17, 15), ("cudaLaunchKernel", 34, 9)];
    let only_ours =
        [("Memset (Device)", 19, 2), ("ampere_sgemm_32x32_sliced1x4_tn", 33, 97), ("void epilogue", 132, 4)];
    let compare = |of: Vec<&Slice>, expected: &[(&str, i64, i64)]| {
        let found: Vec<_> = of.iter().map(|slice| (slice.4.as_str(), slice.2, slice.3)).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for want in expected {
            let is_it = |slice: &&(&str, i64, i64)| {
                slice.0.starts_with(want.0) && (slice.1 - start, slice.2) == (want.1, want.2)
            };
            assert!(found.iter().any(|slice| is_it(&slice)), "{want:?} in {found:?}");
        }
    };
    compare(theirs.difference(&ours).collect(), &only_hta);
    compare(ours.difference(&theirs).collect(), &only_ours);
    assert_eq!((path.sync_from, path.skewed), (SyncFrom::Records, 0));
}

#[test]
fn one_instance_of_an_annotation_has_the_length_and_the_classes_of_hta() {
    let Some(traces) = traces() else { return };
    // HTA 0.5.0, `critical_path_analysis(rank=0, annotation=FORWARD, instance_id=1)`.
    let (_, path) = path_of(&traces.join("edge-cases/critical-path-simple-add"), &Window::Annotation(FORWARD, 1));
    assert_eq!((path.parts, path.length_ns), (314, 241_724_000));
    assert_eq!(edges(&path, Edge::Operator), (288, 241_698));
    assert_eq!(edges(&path, Edge::Dependency), (20, 0));
    assert_eq!(edges(&path, Edge::KernelKernel), (5, 9));
    assert_eq!(edges(&path, Edge::Launch), (1, 17));
    assert_eq!((us(&path, Bound::CpuBound), us(&path, Bound::LaunchOverhead)), (241_190, 17));
    // HTA counts copies and fills as computation.
    assert_eq!(us(&path, Bound::GpuCompute) + us(&path, Bound::MemoryCopy), 508);

    let (run, path) = path_of(&traces.join("edge-cases/critical-path-alexnet"), &Window::Annotation(FORWARD, 1));
    assert_eq!((path.parts, path.length_ns), (148, 35_834_000));
    assert_eq!((us(&path, Bound::CpuBound), us(&path, Bound::KernelKernelOverhead)), (32_042, 50));
    assert_eq!(us(&path, Bound::GpuCompute) + us(&path, Bound::MemoryCopy), 3_712);
    // A kernel of stream 7 waits for one of stream 20 (correlations 5606 and 5629).
    let correlation = |event: Event| match event {
        Event::Device(at) => run.ranks[0].device[at as usize].correlation,
        Event::Host(_) => None,
    };
    let waits = path.elements.iter().filter(|element| element.edge == Edge::Sync);
    let waits: Vec<_> = waits.map(|element| (correlation(element.from.0), correlation(element.to.0))).collect();
    assert_eq!(waits, [(Some(5606), Some(5629))]);
}

#[test]
fn waits_for_events_lead_from_the_kernel_to_whoever_waits() {
    let Some(traces) = traces() else { return };
    // HTA 0.5.0 on the whole traces.
    let (run, path) = path_of(&traces.join("edge-cases/cuda-event-sync"), &Window::Whole);
    assert_eq!((path.parts, path.length_ns), (39, 2_401_000));
    assert_eq!((edges(&path, Edge::Sync).0, edges(&path, Edge::Launch)), (2, (2, 28)));
    let call = |event: Event| match event {
        Event::Host(at) => run.text(run.ranks[0].host[at as usize].name),
        Event::Device(_) => "",
    };
    let waits = path.elements.iter().filter(|element| element.edge == Edge::Sync);
    assert!(waits.map(|element| call(element.to.0)).any(|name| name == "cudaEventSynchronize"));
    assert_eq!(path.steps.len(), 1);

    let (_, path) = path_of(&traces.join("edge-cases/cuda-event-sync-multi-stream"), &Window::Whole);
    assert_eq!((path.parts, path.length_ns), (58, 1_178_000));
    assert_eq!((us(&path, Bound::CpuBound), us(&path, Bound::KernelKernelOverhead)), (1_025, 15));
}

#[test]
fn the_path_of_every_trace_is_connected_and_within_its_span() {
    let Some(traces) = traces() else { return };
    for set in [
        "dlrm-8ranks",
        "a100-control",
        "v100-test",
        "v100-ns",
        "rn50-2021",
        "edge-cases/amd-mi250",
        "edge-cases/triton",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let profile = naive::import(&files(&traces.join(set)), &dir.path().join("p"));
        let run = Run::load(&profile, None, Host::Slices).unwrap();
        for rank in &run.ranks {
            let path = critical_path(&run, &profile, rank.info.rank, &Window::Whole, 5).unwrap().unwrap();
            assert!(path.length_ns > 0 && path.length_ns <= path.span_ns, "{set}");
            assert!(path.elements.windows(2).all(|pair| pair[0].to == pair[1].from), "{set}");
            assert!(path.elements.iter().all(|element| element.from_ns <= element.to_ns), "{set}");
            assert_eq!(path.bounds.iter().map(|part| part.ns).sum::<i64>(), path.length_ns, "{set}");
            let in_steps: i64 = path.steps.iter().map(|step| step.length_ns).sum();
            assert!(in_steps <= path.length_ns, "{set}");
        }
    }
}

#[test]
fn without_recorded_waits_the_path_is_no_shorter_than_the_work_of_any_stream() {
    let Some(traces) = traces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p");
    profile::import::import(&[traces.join("jax-xplane")], &out, &profile::import::Options::default()).unwrap();
    let profile = trace::Profile::open(&out).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let rank = &run.ranks[0];
    let path = critical_path(&run, &profile, rank.info.rank, &Window::Whole, 5).unwrap().unwrap();
    assert_ne!(path.sync_from, SyncFrom::Records);
    assert!(path.launches > 0);
    // A few records overlap by less than 200 ns.
    let busy = |stream: std::ops::Range<usize>| {
        let add = |(busy, reach): (i64, i64), event: &profile::DeviceEvent| {
            (busy + (event.end() - event.ts.max(reach)).max(0), reach.max(event.end()))
        };
        rank.device[stream].iter().fold((0, i64::MIN), add).0
    };
    let busiest = rank.device_tracks().into_iter().map(busy).max().unwrap();
    assert!(path.length_ns >= busiest && busiest > 12_000_000, "{} < {busiest}", path.length_ns);
    let host = path.bounds.iter().filter(|part| part.bound == Bound::CpuBound).map(|part| part.share).sum::<f64>();
    assert!(host < 0.2, "{:?}", path.bounds);
}
