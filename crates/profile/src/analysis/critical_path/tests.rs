use proptest::prelude::*;
use trace::schema::{DeviceRow, HostRow};

use super::*;
use crate::analysis::synthetic::{Synthetic, call, device, host, kernel, operator};

fn path_of(synthetic: &Synthetic, window: &Window<'_>) -> (Run, CriticalPath) {
    let (run, profile, _dir) = synthetic.load();
    let path = critical_path(&run, &profile, 0, window, 5).unwrap().unwrap();
    check(&path);
    (run, path)
}

/// What holds for every path.
fn check(path: &CriticalPath) {
    assert!(path.length_ns <= path.span_ns, "{} in {}", path.length_ns, path.span_ns);
    assert_eq!(path.bounds.iter().map(|part| part.ns).sum::<i64>(), path.length_ns);
    assert_eq!(path.names.iter().map(|part| part.ns).sum::<i64>(), path.length_ns);
    assert_eq!(path.elements.iter().map(|element| element.ns).sum::<i64>(), path.length_ns);
    assert_eq!(path.elements.len() as u64, path.parts);
    for pair in path.elements.windows(2) {
        assert_eq!(pair[0].to, pair[1].from, "the path is connected");
        assert_eq!(pair[0].to_ns, pair[1].from_ns);
    }
    for element in &path.elements {
        assert!(element.from_ns <= element.to_ns, "{element:?}");
        assert!(element.ns == 0 || element.ns == element.to_ns - element.from_ns, "{element:?}");
        assert_eq!(element.bound.is_some(), element.owner.is_some(), "{element:?}");
    }
}

/// Each part with weight: edge, name of its owner, ns.
fn parts<'r>(run: &'r Run, path: &CriticalPath) -> Vec<(Edge, &'r str, i64)> {
    let weighty = path.elements.iter().filter(|element| element.ns > 0);
    weighty.map(|part| (part.edge, run.text(slice(&run.ranks[0], part.owner.unwrap()).0), part.ns)).collect()
}

fn bound(path: &CriticalPath, bound: Bound) -> i64 {
    path.bounds.iter().find(|part| part.bound == bound).map_or(0, |part| part.ns)
}

#[test]
fn nested_operators_count_for_the_innermost_and_gaps_between_operators_for_none() {
    let mut synthetic = Synthetic::new();
    synthetic.rank(0, &[1], &[]).push_all([
        operator("outer", 1, 100, 100),
        operator("inner", 1, 120, 30),
        operator("innermost", 1, 130, 10),
        operator("second", 1, 160, 40),
        operator("next", 1, 500, 7),
    ]);
    let (run, path) = path_of(&synthetic, &Window::Whole);
    use Edge::Operator as Op;
    let expected = [
        (Op, "outer", 20),
        (Op, "inner", 10),
        (Op, "innermost", 10),
        (Op, "inner", 10),
        (Op, "outer", 10),
        (Op, "second", 40),
        (Op, "next", 7),
    ];
    assert_eq!(parts(&run, &path), expected);
    assert_eq!((path.from_ns, path.to_ns, path.span_ns, path.length_ns), (100, 507, 407, 107));
    assert_eq!(path.sync_from, SyncFrom::Nothing);
    let outer = NamePart { name: "outer".into(), bound: Bound::CpuBound, ns: 30, count: 2, share: 30.0 / 107.0 };
    assert_eq!(path.names[1], outer);
}

#[test]
fn kernels_are_joined_to_their_launch_or_to_the_kernel_before() {
    let mut synthetic = Synthetic::new();
    synthetic
        .rank(0, &[1], &[7])
        .push_all([
            operator("op", 1, 0, 60),
            call("cudaLaunchKernel", 1, 10, 10, 1),
            call("cudaLaunchKernel", 1, 30, 10, 2),
        ])
        .push_all([kernel("gemm", 7, 25, 1000, 1), kernel("ncclAllReduce", 7, 1030, 500, 2)]);
    let (run, path) = path_of(&synthetic, &Window::Whole);
    let expected = [
        (Edge::Operator, "op", 10),
        (Edge::Launch, "gemm", 15),
        (Edge::Operator, "gemm", 1000),
        (Edge::KernelKernel, "gemm", 5),
        (Edge::Operator, "ncclAllReduce", 500),
    ];
    assert_eq!(parts(&run, &path), expected);
    assert_eq!(path.length_ns, path.span_ns);
    let of = |wanted| bound(&path, wanted);
    assert_eq!((of(Bound::CpuBound), of(Bound::LaunchOverhead), of(Bound::KernelKernelOverhead)), (10, 15, 5));
    assert_eq!((of(Bound::GpuCompute), of(Bound::GpuCommunication)), (1000, 500));
}

#[test]
fn a_long_gap_is_no_delay_between_kernels() {
    let launch = |gap: i64| {
        let mut synthetic = Synthetic::new();
        synthetic
            .rank(0, &[1], &[7])
            .push_all([call("cudaLaunchKernel", 1, 0, 10, 1), call("cudaLaunchKernel", 1, 20, 10, 2)])
            .push_all([kernel("a", 7, 15, 100, 1), kernel("b", 7, 115 + gap, 10, 2)]);
        let (_, path) = path_of(&synthetic, &Window::Whole);
        bound(&path, Bound::KernelKernelOverhead)
    };
    assert_eq!(launch(1_499_999), 1_499_999);
    assert_eq!(launch(1_500_000), 0);
}

#[test]
fn a_blocking_call_weighs_nothing_and_waits_for_its_stream() {
    let sync = |records: bool| {
        let mut synthetic = Synthetic::new();
        synthetic
            .rank(0, &[1], &[7, 8])
            .push_all([
                call("cudaLaunchKernel", 1, 0, 10, 1),
                call("cudaLaunchKernel", 1, 10, 10, 2),
                call("cudaStreamSynchronize", 1, 30, 1000, 3),
                operator("after", 1, 1050, 100),
            ])
            .push_all([kernel("gemm", 7, 15, 985, 1), kernel("other", 8, 25, 100, 2)]);
        if records {
            synthetic.push(&device("sync", "Stream Sync", 7, 32, 990, 3));
        }
        path_of(&synthetic, &Window::Whole)
    };
    for records in [true, false] {
        let (run, path) = sync(records);
        let expected = [(Edge::Launch, "gemm", 15), (Edge::Operator, "gemm", 985), (Edge::Operator, "after", 100)];
        assert_eq!(parts(&run, &path), expected, "records: {records}");
        assert_eq!(path.sync_from, if records { SyncFrom::Records } else { SyncFrom::Inferred });
        assert!(path.elements.iter().any(|element| element.edge == Edge::Sync));
    }
}

#[test]
fn a_stream_that_waits_for_an_event_depends_on_what_was_launched_before_its_record() {
    let mut synthetic = Synthetic::new();
    let wait = r#"{"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2, "wait_on_cuda_event_id": 5}"#;
    synthetic
        .rank(0, &[1], &[7, 8])
        .push_all([
            call("cudaLaunchKernel", 1, 0, 10, 1),
            call("cudaEventRecord", 1, 10, 5, 2),
            call("cudaLaunchKernel", 1, 16, 4, 3),
            call("cudaStreamWaitEvent", 1, 20, 0, 4),
            call("cudaLaunchKernel", 1, 30, 10, 5),
        ])
        .push_all([
            kernel("first", 7, 12, 500, 1),
            kernel("not waited for", 7, 512, 2000, 3),
            kernel("waits", 8, 514, 3000, 5),
            DeviceRow { args: Some(wait), ..device("sync", "Stream Wait Event", 8, 21, 1, 4) },
        ]);
    let (run, path) = path_of(&synthetic, &Window::Whole);
    let expected = [(Edge::Launch, "first", 12), (Edge::Operator, "first", 500), (Edge::Operator, "waits", 3000)];
    assert_eq!(parts(&run, &path), expected);
}

#[test]
fn without_records_a_late_start_just_after_another_stream_is_a_wait_for_it() {
    let launch_overhead = |gap: i64| {
        let mut synthetic = Synthetic::new();
        synthetic
            .rank(0, &[1], &[7, 8])
            .push_all([call("cudaLaunchKernel", 1, 0, 10, 1), call("cudaLaunchKernel", 1, 20, 10, 2)])
            .push_all([kernel("ncclAllReduce", 7, 15, 500_000, 1), kernel("waits", 8, 500_015 + gap, 9000, 2)]);
        let (_, path) = path_of(&synthetic, &Window::Whole);
        bound(&path, Bound::LaunchOverhead)
    };
    assert_eq!(launch_overhead(20_000), 15);
    assert_eq!(launch_overhead(20_001), 519_996);
}

#[test]
fn an_annotation_selects_what_starts_in_it_and_what_that_launches() {
    let mut synthetic = Synthetic::new();
    for step in 0..3 {
        let at = step * 1000;
        let name = format!("ProfilerStep#{}", 7 + step);
        synthetic
            .push(&host("annotation", &name, 1, at, 900))
            .push(&operator("op", 1, at + 10, 100 + step))
            .push(&call("cudaLaunchKernel", 1, at + 50, 10, step))
            .push(&kernel("gemm", 7, at + 70, 900, step));
    }
    synthetic.rank(0, &[1], &[7]);
    let (_, second) = path_of(&synthetic, &Window::Annotation("ProfilerStep", 1));
    assert_eq!(second.annotation.as_deref(), Some("ProfilerStep#8"));
    assert_eq!((second.from_ns, second.to_ns), (1010, 1970));
    let (_, whole) = path_of(&synthetic, &Window::Whole);
    let lengths: Vec<_> = whole.steps.iter().map(|step| (step.name.as_str(), step.length_ns)).collect();
    // No wait is on record, so the path follows the stream, on which each kernel depends on the one before.
    assert_eq!(lengths, [("ProfilerStep#7", 890), ("ProfilerStep#8", 830), ("ProfilerStep#9", 830)]);
    assert_eq!((whole.length_ns, whole.launches), (60 + 3 * 900, 3));
    let (run, profile, _dir) = synthetic.load();
    let none = |window| critical_path(&run, &profile, 0, &window, 5).unwrap().is_none();
    assert!(none(Window::Annotation("ProfilerStep", 3)) && none(Window::Annotation("epoch", 0)));
    assert!(critical_path(&run, &profile, 1, &Window::Whole, 5).unwrap().is_none());
}

#[test]
fn only_recorded_waits_set_the_device_apart_from_its_own_order() {
    let run = |records: bool| {
        let mut synthetic = Synthetic::new();
        synthetic
            .rank(0, &[1], &[7])
            .push_all([call("cudaLaunchKernel", 1, 0, 10, 1), call("cudaLaunchKernel", 1, 2000, 10, 2)])
            .push_all([kernel("first", 7, 20, 1000, 1), kernel("second", 7, 2020, 500, 2)]);
        if records {
            synthetic.push(&device("sync", "Stream Sync", 7, 5000, 1, 9));
        }
        let (run, path) = path_of(&synthetic, &Window::Whole);
        assert_eq!((path.launches, path.sync_from == SyncFrom::Records), (2, records));
        parts(&run, &path).into_iter().map(|part| (part.0, part.1.to_owned(), part.2)).collect::<Vec<_>>()
    };
    let part = |edge, name: &str, ns| (edge, name.to_owned(), ns);
    let first = [part(Edge::Launch, "first", 20), part(Edge::Operator, "first", 1000)];
    assert_eq!(run(true), first);
    assert_eq!(run(false), [&first[..], &[part(Edge::Operator, "second", 500)]].concat());
}

#[test]
fn a_path_without_any_launch_on_record_says_so() {
    let mut synthetic = Synthetic::new();
    synthetic.rank(0, &[1], &[7]).push(&operator("op", 1, 0, 500));
    synthetic.push(&DeviceRow { correlation: None, ..kernel("gemm", 7, 100, 300, 0) });
    let (_, path) = path_of(&synthetic, &Window::Whole);
    assert_eq!((path.launches, path.length_ns), (0, 500));
}

#[test]
fn loading_of_data_is_a_class_of_its_own() {
    let mut synthetic = Synthetic::new();
    synthetic.rank(0, &[1], &[]).push_all([
        host("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, 0, 100),
        operator("aten::stack", 1, 20, 30),
        operator("aten::add", 1, 200, 10),
    ]);
    let (_, path) = path_of(&synthetic, &Window::Whole);
    assert_eq!((bound(&path, Bound::DataLoading), bound(&path, Bound::CpuBound)), (100, 10));
}

#[test]
fn the_backward_pass_on_a_thread_of_its_own_lies_between_forward_and_optimizer() {
    let mut synthetic = Synthetic::new();
    let numbered = |number: i64, forward_thread: i64, row: HostRow<'static>| HostRow {
        sequence: Some(number),
        forward_thread: Some(forward_thread),
        ..row
    };
    synthetic.rank(0, &[1, 2], &[]).push_all([
        numbered(5, 0, operator("first", 1, 0, 100)),
        numbered(6, 0, operator("loss", 1, 110, 50)),
        numbered(6, 1, operator("LossBackward", 2, 170, 80)),
        numbered(5, 1, operator("FirstBackward", 2, 260, 90)),
        operator("optimizer", 1, 400, 30),
    ]);
    let (run, path) = path_of(&synthetic, &Window::Whole);
    let names: Vec<_> = parts(&run, &path).into_iter().map(|part| part.1).collect();
    assert_eq!(names, ["first", "loss", "LossBackward", "FirstBackward", "optimizer"]);
    assert_eq!(path.length_ns, 350);
}

#[test]
fn edges_that_would_go_back_in_time_are_counted_and_left_out() {
    let mut synthetic = Synthetic::new();
    let wait = r#"{"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}"#;
    synthetic
        .rank(0, &[1], &[7])
        .push_all([
            call("cudaLaunchKernel", 1, 0, 10, 1),
            call("cudaEventRecord", 1, 10, 5, 2),
            call("cudaEventSynchronize", 1, 20, 50, 3),
        ])
        .push_all([
            kernel("gemm", 7, 12, 100, 1),
            DeviceRow { args: Some(wait), ..device("sync", "Event Sync", -1, 21, 40, 3) },
        ]);
    let (_, path) = path_of(&synthetic, &Window::Whole);
    assert_eq!(path.skewed, 1);
}

#[test]
fn chains_that_wait_for_each_other_at_one_time_do_not_stop_the_search() {
    // Two threads whose synchronisations end when the other's kernel, launched later, has started and ended: all at time 50.
    let mut synthetic = Synthetic::new();
    let on = |stream: i64, record: i64| {
        format!(r#"{{"wait_on_stream": {stream}, "wait_on_cuda_event_record_corr_id": {record}}}"#)
    };
    let (on_7, on_8) = (on(7, 11), on(8, 12));
    synthetic
        .rank(0, &[1, 2], &[7, 8])
        .push_all([
            call("cudaEventSynchronize", 1, 0, 50, 1),
            call("cudaLaunchKernel", 1, 50, 5, 2),
            call("cudaEventRecord", 1, 60, 5, 12),
            operator("long", 1, 100, 1000),
            call("cudaEventSynchronize", 2, 0, 50, 3),
            call("cudaLaunchKernel", 2, 50, 5, 4),
            call("cudaEventRecord", 2, 60, 5, 11),
        ])
        .push_all([
            kernel("by 1", 8, 50, 0, 2),
            kernel("by 2", 7, 50, 0, 4),
            DeviceRow { args: Some(&on_7), ..device("sync", "Event Sync", -1, 1, 40, 1) },
            DeviceRow { args: Some(&on_8), ..device("sync", "Event Sync", -1, 1, 40, 3) },
        ]);
    let (_, path) = path_of(&synthetic, &Window::Whole);
    assert!(path.length_ns >= 1000);
}

/// A program: threads of nested slices, launches with kernels that start after them, and sync records.
fn program() -> impl Strategy<Value = Synthetic> {
    let slice = (0..3i64, 0..2000i64, 0..300i64, 0..5u8);
    let launch = (0..3i64, 0..2000i64, 0..20i64, 0..3i64, -50..400i64, 0..300i64);
    let wait = (0..3i64, 0..2000i64, 0..300i64, 0..3i64, 0..4usize, 0..20i64);
    (prop::collection::vec(slice, 0..40), prop::collection::vec(launch, 0..30), prop::collection::vec(wait, 0..10))
        .prop_map(|(slices, launches, waits)| {
            let mut synthetic = Synthetic::new();
            synthetic.rank(0, &[0, 1, 2], &[0, 1, 2]);
            for (track, ts, dur, kind) in slices {
                let name = ["aten::add", "cudaStreamSynchronize", "DataLoader", "step 3", "frame"][kind as usize];
                let kind = ["operator", "runtime", "annotation", "annotation", "python"][kind as usize];
                synthetic.push(&host(kind, name, track, ts, dur));
            }
            for (at, (track, ts, dur, stream, delay, length)) in (0..).zip(launches) {
                synthetic.push(&call("cudaLaunchKernel", track, ts, dur, at));
                synthetic.push(&kernel(["gemm", "ncclKernel"][at as usize % 2], stream, ts + delay, length, at));
            }
            for (at, (track, ts, dur, stream, kind, record)) in (100..).zip(waits) {
                let name = ["Stream Sync", "Context Sync", "Event Sync", "Stream Wait Event"][kind];
                let args = format!(
                    r#"{{"wait_on_stream":{},"wait_on_cuda_event_record_corr_id":{record}}}"#,
                    (stream + 1) % 3
                );
                synthetic.push(&HostRow { ..call("cudaDeviceSynchronize", track, ts, dur, at) });
                synthetic.push(&DeviceRow { args: Some(&args), ..device("sync", name, stream, ts, dur, at) });
            }
            synthetic
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_path_is_connected_in_order_of_time_and_its_classes_are_its_length(synthetic in program()) {
        let (run, profile, _dir) = synthetic.load();
        let Some(path) = critical_path(&run, &profile, 0, &Window::Whole, 5).unwrap() else { return Ok(()) };
        check(&path);
        // No kernel is longer than the path, nor any operator without children.
        let longest = run.ranks[0].device.iter().filter(|event| event.is_work()).map(|event| event.dur).max();
        prop_assert!(path.length_ns >= longest.unwrap_or(0));
        for step in &path.steps {
            prop_assert!(step.length_ns <= step.to_ns - step.from_ns);
        }
    }
}
