//! What holds for the analyses of any run, and the report of a program with known timings.

mod support;

use profile::analysis::{self, Analyses, Options};
use profile::{DeviceKind, Flag, HostKind, Run};
use proptest::prelude::*;
use support::synthetic::{Program, empty_profile};
use trace::schema::{CounterRow, Table};
use trace::{Batch, Profile, Writer};

/// Times of the random runs end before this, ns.
const END: i64 = 220;

#[derive(Clone, Debug)]
struct Event {
    device: i64,
    stream: i64,
    kind: u8,
    name: u8,
    ts: i64,
    dur: i64,
    /// How long before its start it was launched, if it was; and the call's duration.
    launch: Option<(i64, i64)>,
    flag: u8,
}

fn event() -> impl Strategy<Value = Event> {
    let launch = proptest::option::of((0i64..60, 0i64..20));
    (0i64..2, 0i64..3, 0u8..6, 0u8..3, 60i64..180, 0i64..40, launch, 0u8..12).prop_map(
        |(device, stream, kind, name, ts, dur, launch, flag)| Event {
            device,
            stream,
            kind,
            name,
            ts,
            dur,
            launch,
            flag,
        },
    )
}

/// Name and kind of an event.
fn what(event: &Event) -> (DeviceKind, String) {
    match event.kind {
        0 | 1 => (DeviceKind::Kernel, format!("kernel_{}", event.name)),
        2 => (DeviceKind::Kernel, format!("ncclDevKernel_AllReduce_{}", event.name)),
        3 => (DeviceKind::Memcpy, "Memcpy HtoD (Pageable -> Device)".into()),
        4 => (DeviceKind::Memset, "Memset (Device)".into()),
        _ => (DeviceKind::Sync, "Stream Wait Event".into()),
    }
}

fn flag(event: &Event) -> Flag {
    match event.flag {
        0 => Flag::LostTimestamp,
        1 => Flag::NegativeDuration,
        2 => Flag::Unfinished,
        _ => Flag::None,
    }
}

fn is_work(event: &Event) -> bool {
    event.kind < 5 && matches!(flag(event), Flag::None | Flag::Unfinished)
}

fn program(events: &[Event]) -> Run {
    let mut program = Program::default();
    program.rank();
    program.host(0, HostKind::Annotation, "step_1", 0, END / 2);
    program.host(0, HostKind::Annotation, "step_2", END / 2, END / 2);
    for (id, event) in events.iter().enumerate() {
        let (kind, name) = what(event);
        let added = program.device((event.device, event.stream), kind, &name, event.ts, event.dur);
        added.correlation = Some(id as i64);
        added.bytes = (event.kind == 3).then_some(100);
        added.flag = flag(event);
        if let Some((before, dur)) = event.launch {
            program.host(1, HostKind::Runtime, "cudaLaunchKernel", event.ts - before, dur).correlation =
                Some(id as i64);
        }
    }
    program.run()
}

fn analyse(run: &Run) -> Analyses {
    let (_dir, profile) = empty_profile();
    analysis::analyse(run, &profile, &Options { queue_limit: 3, kernel_wait_ns: 5, ..Options::default() }).unwrap()
}

/// Whether work that `take` takes runs in each ns.
fn covered(events: &[Event], take: impl Fn(&Event) -> bool) -> Vec<bool> {
    let mut covered = vec![false; END as usize];
    for event in events.iter().filter(|event| is_work(event) && take(event)) {
        covered[event.ts as usize..(event.ts + event.dur) as usize].fill(true);
    }
    covered
}

fn count(covered: &[bool]) -> i64 {
    covered.iter().filter(|at| **at).count() as i64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn time_is_divided_without_rest(events in proptest::collection::vec(event(), 0..40)) {
        let analyses = analyse(&program(&events));
        let rank = &analyses.ranks[0];
        let temporal = &rank.temporal;
        let busy = covered(&events, |_| true);
        let class = |kinds: &'static [u8]| covered(&events, move |event| kinds.contains(&event.kind));
        let (compute, communication, memory) = (class(&[0, 1]), class(&[2]), class(&[3, 4]));
        prop_assert_eq!(temporal.busy_ns + temporal.idle_ns, temporal.span_ns);
        prop_assert_eq!(temporal.compute_ns + temporal.non_compute_ns + temporal.idle_ns, temporal.span_ns);
        prop_assert_eq!(temporal.busy_ns, count(&busy));
        prop_assert_eq!(temporal.compute_ns, count(&compute));
        prop_assert_eq!(temporal.communication_ns, count(&communication));
        prop_assert_eq!(temporal.memory_ns, count(&memory));
        prop_assert_eq!(rank.overlap.overlap_ns + rank.overlap.exposed_ns, temporal.communication_ns);
        let work: Vec<&Event> = events.iter().filter(|event| is_work(event)).collect();
        prop_assert_eq!(temporal.events, work.len() as u64);
        prop_assert_eq!(temporal.first_ns, work.iter().map(|event| event.ts).min().unwrap_or(0));
        prop_assert_eq!(temporal.last_ns, work.iter().map(|event| event.ts + event.dur).max().unwrap_or(0));
        let flagged = |wanted: Flag| events.iter().filter(|event| event.kind < 5 && flag(event) == wanted).count() as u64;
        prop_assert_eq!(temporal.lost_timestamp, flagged(Flag::LostTimestamp));
        prop_assert_eq!(temporal.negative_duration, flagged(Flag::NegativeDuration));

        // Kinds of work divide busy time.
        prop_assert_eq!(rank.kernel_types.iter().map(|one| one.ns).sum::<i64>(), temporal.busy_ns);
        for one in &rank.kernel_types {
            let has = |word: &str| one.classes.contains(&word);
            let expected = (0..END as usize).filter(|at| {
                compute[*at] == has("compute") && communication[*at] == has("communication") && memory[*at] == has("memory")
            });
            prop_assert_eq!(one.ns, expected.count() as i64);
        }

        // Devices, their utilisation, and steps see the same time.
        for (device, utilisation) in rank.devices.iter().zip(&rank.utilisation) {
            let busy = count(&covered(&events, |event| event.device == device.device));
            prop_assert_eq!(device.temporal.busy_ns, busy);
            let series = &utilisation.busy;
            prop_assert!(series.values.iter().all(|value| (0.0..=1.0).contains(value)));
            if let Some(last) = series.values.len().checked_sub(1) {
                let window = (utilisation.mean != 0.0).then(|| busy as f64 / utilisation.mean);
                let whole: f64 = series.values[..last].iter().sum::<f64>() * series.bucket_ns as f64;
                if let Some(window) = window {
                    let rest = window - (last as i64 * series.bucket_ns) as f64;
                    prop_assert!((whole + series.values[last] * rest - busy as f64).abs() < 1e-6);
                }
            }
        }
        let steps = &rank.steps[0];
        prop_assert_eq!(&steps.name, "step");
        prop_assert_eq!(steps.instances.len(), 2);
        for step in &steps.instances {
            prop_assert_eq!(step.device_busy_ns, count(&busy[step.ts as usize..(step.ts + step.dur) as usize]));
        }
    }

    #[test]
    fn tables_add_up(events in proptest::collection::vec(event(), 0..40)) {
        let analyses = analyse(&program(&events));
        let rank = &analyses.ranks[0];
        let work: Vec<&Event> = events.iter().filter(|event| is_work(event)).collect();
        let sum: i64 = work.iter().map(|event| event.dur).sum();
        let rows = &rank.kernels.rows;
        prop_assert_eq!(rows.iter().map(|row| row.durations.sum_ns).sum::<i64>(), sum);
        for row in rows {
            let mut durations: Vec<i64> =
                work.iter().filter(|event| what(event).1 == row.name).map(|event| event.dur).collect();
            durations.sort_unstable();
            prop_assert_eq!(row.durations.count, durations.len() as u64);
            prop_assert_eq!(row.durations.sum_ns, durations.iter().sum::<i64>());
            prop_assert_eq!((row.durations.min_ns, row.durations.max_ns), (durations[0], durations[durations.len() - 1]));
            let (low, high) = (durations[(durations.len() - 1) / 2], durations[durations.len() / 2]);
            prop_assert_eq!(row.durations.median_ns, (low + high) as f64 / 2.0);
            let launched = work.iter().filter(|event| what(event).1 == row.name && event.launch.is_some()).count();
            prop_assert_eq!(row.launches, launched as u64);
        }
        for parts in [&rank.kernels.by_time, &rank.kernels.by_runs] {
            prop_assert_eq!(parts.iter().map(|part| part.sum_ns).sum::<i64>(), sum);
            prop_assert_eq!(parts.iter().map(|part| part.runs).sum::<u64>(), work.len() as u64);
        }
        let activity = &rank.activity;
        prop_assert_eq!(activity.kernel.sum_ns + activity.memcpy.sum_ns + activity.memset.sum_ns, sum);
        prop_assert_eq!(rank.memory.iter().map(|one| one.durations.sum_ns).sum::<i64>(), activity.memcpy.sum_ns + activity.memset.sum_ns);
        prop_assert_eq!(rank.memory.iter().map(|one| one.bytes).sum::<i64>(), 100 * activity.memcpy.count as i64);
        prop_assert_eq!(rank.precisions.parts.iter().map(|part| part.ns).sum::<i64>(), activity.kernel.sum_ns);
        let launches = &rank.launches;
        prop_assert_eq!(launches.pairs + launches.without_launch, work.len() as u64);
        let delays = work.iter().filter_map(|event| event.launch.map(|(before, dur)| (before - dur).max(0)));
        prop_assert_eq!(launches.delay.sum_ns, delays.sum::<i64>());
        prop_assert_eq!(launches.before_launch, 0);
    }

    #[test]
    fn streams_idle_and_queue_as_events_say(events in proptest::collection::vec(event(), 0..40)) {
        let analyses = analyse(&program(&events));
        let rank = &analyses.ranks[0];
        for idle in &rank.idle {
            let on = |event: &Event| (event.device, event.stream) == (idle.device, idle.stream);
            let busy = covered(&events, on);
            let work = || events.iter().filter(|event| is_work(event) && on(event));
            let span = work().map(|event| event.ts + event.dur).max().unwrap() - work().map(|event| event.ts).min().unwrap();
            prop_assert_eq!(idle.total_ns + count(&busy), span);
            prop_assert!(idle.kernel_wait.gaps.max_ns < 5);
            let gaps = [&idle.host_wait, &idle.kernel_wait, &idle.other];
            prop_assert!(gaps.iter().all(|one| one.gaps.count == 0 || one.gaps.min_ns > 0));
        }
        for queue in &rank.queues {
            let launched = events.iter().filter(|event| {
                is_work(event) && event.launch.is_some() && (event.device, event.stream) == (queue.device, queue.stream)
            });
            let launched: Vec<(i64, i64)> = launched.map(|event| (event.ts - event.launch.unwrap().0, event.ts)).collect();
            prop_assert_eq!(queue.at_changes.count, 2 * launched.len() as u64);
            // Launches come before starts here.
            prop_assert!(queue.at_changes.min >= 0.0);
            prop_assert!(0.0 <= queue.mean_over_time && queue.mean_over_time <= queue.at_changes.max);
            let length = |at: i64| launched.iter().filter(|(launch, start)| *launch <= at && at < *start).count() as i64;
            let first = launched.iter().map(|pair| pair.0).min().unwrap();
            let last = launched.iter().map(|pair| pair.1).max().unwrap();
            prop_assert_eq!(queue.span_ns, last - first);
            prop_assert_eq!(queue.full_ns, (first..last).filter(|at| length(*at) >= 3).count() as i64);
            prop_assert_eq!(queue.empty_ns, (first..last).filter(|at| length(*at) == 0).count() as i64);
            let mean = (first..last).map(length).sum::<i64>() as f64 / ((last - first).max(1)) as f64;
            prop_assert!((queue.mean_over_time - mean).abs() < 1e-9);
        }
    }
}

/// Two steps of 1000 ns on one device: 400 ns of computation, 300 of communication of which 100 hide behind it, 50 ns of copy.
#[test]
fn a_program_with_known_timings_gets_the_right_report() {
    let mut program = Program::default();
    program.rank();
    for step in 0..2 {
        let at = 1_000 * step;
        program.host(0, HostKind::Annotation, &format!("step_{step}"), at, 1_000);
        let mut launch = |id: i64, call: &str, ts: i64, dur: i64| {
            program.host(0, HostKind::Runtime, call, at + ts, dur).correlation = Some(10 * step + id);
        };
        launch(1, "cudaMemcpyAsync", 0, 20);
        launch(2, "cudaLaunchKernel", 30, 10);
        launch(3, "cudaLaunchKernel", 50, 10);
        launch(4, "cudaLaunchKernel", 600, 30);
        let mut work = |id: i64, stream: i64, kind: DeviceKind, name: &str, ts: i64, dur: i64| {
            let event = program.device((0, stream), kind, name, at + ts, dur);
            event.correlation = Some(10 * step + id);
            event.bytes = (kind == DeviceKind::Memcpy).then_some(5_000);
        };
        work(1, 7, DeviceKind::Memcpy, "Memcpy HtoD (Pageable -> Device)", 40, 50);
        work(2, 7, DeviceKind::Kernel, "ampere_sgemm_128x64_tn", 100, 300);
        work(3, 8, DeviceKind::Kernel, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 300, 300);
        work(4, 7, DeviceKind::Kernel, "c10::Half adamw", 700, 100);
    }
    program.host(0, HostKind::Runtime, "cudaDeviceSynchronize", 1_900, 40);
    let run = program.run();
    let (_dir, profile) = empty_profile();
    let options = Options { kernel_wait_ns: 50, launch_delay_cutoff_ns: 100, top: 2, buckets: 4, ..Options::default() };
    let analyses = analysis::analyse(&run, &profile, &options).unwrap();
    let rank = &analyses.ranks[0];

    let temporal = &rank.temporal;
    assert_eq!((temporal.first_ns, temporal.last_ns, temporal.span_ns), (40, 1_800, 1_760));
    assert_eq!((temporal.busy_ns, temporal.compute_ns, temporal.communication_ns), (1_300, 800, 600));
    assert_eq!((temporal.memory_ns, temporal.overlap_ns, temporal.idle_ns), (100, 200, 460));
    assert_eq!((rank.overlap.exposed_ns, rank.overlap.share), (400, Some(1.0 / 3.0)));
    let types: Vec<(Vec<&str>, i64)> = rank.kernel_types.iter().map(|one| (one.classes.clone(), one.ns)).collect();
    let expected = [
        (vec!["compute"], 600),
        (vec!["communication"], 400),
        (vec!["compute", "communication"], 200),
        (vec!["memory"], 100),
    ];
    assert_eq!(types, expected);

    let names: Vec<(&str, i64, u64)> =
        rank.kernels.rows.iter().map(|row| (&row.name[..], row.durations.sum_ns, row.launches)).collect();
    assert_eq!(names[0], ("ampere_sgemm_128x64_tn", 600, 2));
    assert_eq!(names[3], ("Memcpy HtoD (Pageable -> Device)", 100, 2));
    assert_eq!(rank.kernels.by_time.len(), 3);
    assert_eq!((rank.kernels.by_time[2].name.as_ref(), rank.kernels.by_time[2].sum_ns), (None, 300));

    // Stream 7: 90..100 kernel wait; 400..700 launched at 600, host wait; 800..1040 launched at 1000, host wait; and again.
    let idle = rank.idle.iter().find(|idle| idle.stream == 7).unwrap();
    assert_eq!((idle.kernel_wait.gaps.sum_ns, idle.host_wait.gaps.sum_ns, idle.other.gaps.sum_ns), (20, 840, 0));
    assert_eq!(idle.host_wait.longest, Some((400, 700)));
    assert_eq!(rank.idle.iter().find(|idle| idle.stream == 8).unwrap().host_wait.gaps.sum_ns, 700);

    let launches = &rank.launches;
    assert_eq!((launches.pairs, launches.without_launch, launches.short.count), (8, 0, 0));
    assert_eq!((launches.delay.sum_ns, launches.delay.max_ns), (2 * (20 + 60 + 240 + 70), 240));
    assert_eq!((launches.long_delays.count, launches.long_delays.ns), (2, 480));
    assert_eq!(launches.longest[0].name, "ncclDevKernel_AllReduce_Sum_f32_RING_LL");

    let queue = rank.queues.iter().find(|queue| queue.stream == 7).unwrap();
    // 40 + 70 + 100 ns of waiting in each step, from 0 to 1700.
    assert_eq!((queue.span_ns, queue.at_changes.max, queue.at_changes.min), (1_700, 2.0, 0.0));
    assert!((queue.mean_over_time - 420.0 / 1_700.0).abs() < 1e-12);

    let memory = &rank.memory[0];
    assert_eq!((&memory.direction[..], memory.bytes, memory.mean_gb_per_s), ("Memcpy HtoD", 10_000, Some(100.0)));
    assert_eq!((memory.pageable.count, memory.bandwidth.max), (2, 100.0));
    let steps = &rank.steps[0];
    assert_eq!((&steps.name[..], steps.durations.count, steps.durations.mean_ns), ("step", 2, 1_000.0));
    assert_eq!((steps.instances[1].number, steps.instances[1].device_busy_ns), (Some(1), 650));
    let precisions: Vec<(&str, i64)> = rank.precisions.parts.iter().map(|part| (part.precision, part.ns)).collect();
    assert_eq!(precisions, [("FP32", 1_200), ("FP16", 200)]);
    assert_eq!((rank.activity.sync.sum_ns, rank.activity.sync_from), (40, Some("host")));
    assert_eq!((rank.cpu.source, analyses.nodes.len(), analyses.nodes[0].devices), (Some("host slices"), 1, 1));
    // The window is 0..1940, in four buckets: busy 40..90, 100..486 of the first 486.
    assert!((rank.utilisation[0].busy.values[0] - 436.0 / 486.0).abs() < 1e-12);
    assert_eq!(analysis::histogram(&run, None, "step", 10)[0].durations.count, 2);
    assert_eq!(analysis::histogram(&run, None, "step_1", 10)[0].durations.count, 1);
}

/// Of three ranks the last comes 500 ns late to every collective; clocks differ and are aligned.
#[test]
fn the_rank_that_others_wait_for_is_named() {
    let mut program = Program::default();
    for rank in 0..3 {
        program.rank();
        let offset = 10_000 * rank;
        let late = if rank == 2 { 500 } else { 0 };
        let group = program.texts.intern("default");
        for number in 0..4 {
            let start = 1_000 * number + late + 10 * rank - offset;
            let event =
                program.device((0, 7), DeviceKind::Kernel, "ncclDevKernel_AllReduce", start, 900 - late - 10 * rank);
            (event.group, event.sequence) = (Some(group), Some(number));
        }
        program.ranks.last_mut().unwrap().info.offset_ns = offset;
    }
    let run = program.run();
    let (_dir, profile) = empty_profile();
    let stragglers = analysis::analyse(&run, &profile, &Options::default()).unwrap().stragglers;
    assert_eq!((stragglers.method, stragglers.collectives), (Some("group and sequence"), 4));
    let of = |rank: usize| &stragglers.ranks[rank];
    assert_eq!((of(2).last, of(2).lateness.median_ns, of(2).straggler), (4, 520.0, true));
    assert_eq!((of(0).waited_ns, of(1).waited_ns, of(2).waited_ns), (4 * 520, 4 * 510, 0));
    assert_eq!(of(2).made_others_wait_ns, 4 * 510 * 2);
    assert!(!of(0).straggler && !of(1).straggler);
    assert_eq!(stragglers.waited_ns, 4 * 1_030);
}

/// A hostile file may say any time: such slices are counted and left out, and nothing overflows.
#[test]
fn impossible_times_are_left_out() {
    let mut program = Program::default();
    program.rank();
    for (id, (ts, dur)) in
        [(i64::MIN + 1, 5), (i64::MAX - 5, 5), (0, i64::MAX), (100_000, 50_000)].into_iter().enumerate()
    {
        program.device((0, 7), DeviceKind::Kernel, "kernel", ts, dur).correlation = Some(id as i64);
        program.host(0, HostKind::Runtime, "cudaLaunchKernel", ts, dur).correlation = Some(id as i64);
        program.host(0, HostKind::Annotation, "step_1", ts, dur);
    }
    let run = program.run();
    let (_dir, profile) = empty_profile();
    for hta_compat in [false, true] {
        let options = Options { hta_compat, ..Options::default() };
        let analyses = analysis::analyse(&run, &profile, &options).unwrap();
        let temporal = &analyses.ranks[0].temporal;
        assert_eq!((temporal.events, temporal.lost_timestamp, temporal.busy_ns), (1, 3, 50_000), "{hta_compat}");
    }
}

/// Counters of the system count for more than what threads seem to do: 20 % and 80 % of two cores in turn.
#[test]
fn processors_are_as_busy_as_the_counters_say() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("counted.profile");
    let mut writer = Writer::create(&path, "counted").unwrap();
    let mut batch = Batch::new(Table::Counters);
    let mut count = |ts: i64, name: &str, series: &str, value: f64| {
        batch.push(&CounterRow { rank: 0, track: 1, ts, name, series, value, unit: Some("%") });
    };
    for (ts, one, two) in [(0, 0.0, 0.0), (500, 20.0, 80.0), (1_000, 80.0, 20.0)] {
        count(ts, "cpu_utilisation", "core 0", one);
        count(ts, "cpu_utilisation", "core 1", two);
        count(ts, "process_cpu_utilisation", "", 170.0);
    }
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let profile = Profile::open(&path).unwrap();
    let mut program = Program::default();
    program.rank();
    program.host(0, HostKind::Operator, "step", 0, 1_000);
    let run = program.run();
    let analyses = analysis::analyse(&run, &profile, &Options { buckets: 2, ..Options::default() }).unwrap();
    let cpu = &analyses.ranks[0].cpu;
    assert_eq!((cpu.source, cpu.cores.len()), (Some("counters"), 2));
    let first = &cpu.cores[0];
    assert_eq!((&first.name[..], first.busy.bucket_ns), ("core 0", 501));
    // The second sample's value holds up to it, the third's after it.
    let expected = [(500.0 * 0.2 + 0.8) / 501.0, 0.8];
    assert!(first.busy.values.iter().zip(expected).all(|(ours, theirs)| (ours - theirs).abs() < 1e-12), "{first:?}");
    assert!((cpu.mean - 0.5).abs() < 1e-12);
}
