use trace::schema::{DeviceRow, HostRow};

use super::*;
use crate::analysis::critical_path::{Window, critical_path};
use crate::analysis::synthetic::{Synthetic, call, device, host, kernel, operator};
use crate::analysis::{Options, analyse};

fn found(synthetic: &Synthetic) -> Vec<Finding> {
    let (run, profile, _dir) = synthetic.load();
    let analyses = analyse(&run, &profile, &Options::default()).unwrap();
    let paths = run.ranks.iter().map(|rank| critical_path(&run, &profile, rank.info.rank, &Window::Whole, 5).unwrap());
    let found = findings(&run, &profile, &analyses, &paths.flatten().collect::<Vec<_>>()).unwrap();
    for finding in &found {
        assert!(finding.text.ends_with('.') && !finding.text.contains("NaN"), "{finding:?}");
        assert!(finding.text.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit()), "{finding:?}");
        assert!((0.0..=1.0).contains(&finding.share), "{finding:?}");
        assert!(finding.link.is_none_or(|link| link.from_ns < link.to_ns), "{finding:?}");
    }
    assert!(found.len() <= MOST);
    found
}

/// The only finding.
fn only(synthetic: &Synthetic) -> Finding {
    let mut found = found(synthetic);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

/// A step of 10 ms in which the host runs ahead and the device never idles: eight kernels of 1.2 ms, a collective beside them and a
/// short copy from pinned memory. `change` may alter each kernel.
fn ideal(steps: i64, change: impl Fn(i64, DeviceRow<'static>) -> DeviceRow<'static>) -> Synthetic {
    const KERNELS: [&str; 4] =
        ["bf16_s16816gemm_a", "bf16_s16816gemm_b", "softmax<c10::BFloat16>", "layer_norm<c10::BFloat16>"];
    let mut synthetic = Synthetic::new();
    synthetic.rank(0, &[1], &[7, 8]).model(0, "NVIDIA A100-SXM4-80GB");
    for step in 0..steps {
        let at = step * 10_000_000;
        let name = format!("ProfilerStep#{step}");
        synthetic.push(&host("annotation", &name, 1, at, 10_000_000));
        for number in 0..8 {
            let id = step * 10 + number;
            synthetic.push(&call("cudaLaunchKernel", 1, at + number * 6_000, 5_000, id));
            let start = at + 100_000 + number * 1_250_000;
            synthetic.push(&change(id, kernel(KERNELS[number as usize % 4], 7, start, 1_250_000, id)));
        }
        synthetic.push(&call("cudaLaunchKernel", 1, at + 60_000, 5_000, step * 10 + 8));
        synthetic.push(&kernel("ncclDevKernel_AllReduce_bf16", 8, at + 2_000_000, 3_000_000, step * 10 + 8));
        synthetic.push(&call("cudaMemcpyAsync", 1, at + 70_000, 5_000, step * 10 + 9));
        let copy = device("memcpy", "Memcpy HtoD (Pinned -> Device)", 8, at + 6_000_000, 100_000, step * 10 + 9);
        synthetic.push(&copy);
    }
    synthetic
}

#[test]
fn nothing_is_found_in_an_ideal_program() {
    assert_eq!(found(&ideal(8, |_, row| row)), []);
    assert_eq!(found(&Synthetic::new()), []);
}

/// Kernels of 4 µs, each launched `gap` ns after the one before has ended.
fn starved(gap: i64, between: impl Fn(&mut Synthetic, i64)) -> Synthetic {
    let mut synthetic = Synthetic::new();
    synthetic.rank(0, &[1], &[7]);
    for number in 0..100 {
        let at = number * (gap + 4_000);
        let name = ["a<c10::Half>", "b<c10::Half>", "c<c10::Half>", "d<c10::Half>"][number as usize % 4];
        synthetic.push(&call("cudaLaunchKernel", 1, at - 5_000, 4_000, number));
        synthetic.push(&kernel(name, 7, at, 4_000, number));
        between(&mut synthetic, at + 4_000);
    }
    synthetic
}

#[test]
fn short_kernels_that_wait_for_their_launch() {
    let finding = only(&starved(12_000, |_, _| {}));
    assert_eq!((finding.rule, finding.ns), ("launch_bound", 99 * 12_000));
    assert_eq!(finding.devices, [(0, 0)]);
    assert!(
        finding.text.contains("75 %") && finding.text.contains("4.0 µs") && finding.text.contains("graphs"),
        "{}",
        finding.text
    );
    let link = finding.link.unwrap();
    assert_eq!((link.track, link.to_ns - link.from_ns), (107, 12_000));
}

#[test]
fn long_gaps_by_what_the_host_does_in_them() {
    let gap = 2_000_000;
    let finding = only(&starved(gap, |_, _| {}));
    assert_eq!((finding.rule, finding.ns), ("host_work", 99 * gap));
    let finding = only(&starved(gap, |synthetic, at| {
        synthetic.push(&operator("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, at, 1_990_000));
    }));
    assert_eq!((finding.rule, finding.ns), ("data_loading", 99 * 1_990_000));
    let found_rules = |synthetic: &Synthetic| found(synthetic).iter().map(|finding| finding.rule).collect::<Vec<_>>();
    let rules = found_rules(&starved(gap, |synthetic, at| {
        synthetic.push(&call("cudaMalloc", 1, at, 1_500_000, -1));
    }));
    assert_eq!(rules, ["host_allocation", "launch_bound"]);
    let finding = only(&starved(gap, |synthetic, at| {
        synthetic.push(&call("cudaStreamSynchronize", 1, at - 3_000, 4_000, -1));
    }));
    assert_eq!((finding.rule, finding.ns), ("synchronisation", 99 * gap));
    let finding = only(&starved(gap, |synthetic, at| {
        let name = format!("step_{at}");
        synthetic.push(&host("annotation", &name, 1, at - 3_000, 1_000_000));
    }));
    assert_eq!(finding.rule, "between_steps");
}

#[test]
fn idle_time_without_a_late_launch_is_unexplained() {
    let finding =
        only(&ideal(8, |id, row| if matches!(id % 10, 5 | 6) { DeviceRow { dur: 10_000, ..row } } else { row }));
    assert_eq!(finding.rule, "idle_unexplained");
}

#[test]
fn communication_that_nothing_hides() {
    let mut synthetic = ideal(4, |id, row| if id % 10 >= 6 { DeviceRow { dur: 10_000, ..row } } else { row });
    for step in 0..4 {
        let at = step * 10_000_000 + 7_600_000;
        synthetic.push(&call("cudaLaunchKernel", 1, at - 7_000_000, 100, 1000 + step));
        synthetic.push(&kernel("ncclDevKernel_AllGather_bf16", 8, at, 2_500_000, 1000 + step));
    }
    let finding = only(&synthetic);
    assert_eq!((finding.rule, finding.ranks.as_slice()), ("exposed_communication", [0].as_slice()));
    assert_eq!(finding.link.unwrap().track, 108);
    assert!(finding.text.contains("of each step"), "{}", finding.text);
}

#[test]
fn copies_of_pageable_memory() {
    let finding = only(&ideal(8, |id, row| match id % 10 {
        5 => DeviceRow { kind: "memcpy", name: "Memcpy HtoD (Pageable -> Device)", ..row },
        _ => row,
    }));
    assert_eq!((finding.rule, finding.ns), ("pageable_copies", 8 * (1_250_000 - 100_000) + 8 * 100_000));
    assert!(finding.text.contains("8 copies") && finding.text.contains("pin_memory"), "{}", finding.text);
}

#[test]
fn copies_of_pinned_memory_that_nothing_hides() {
    let finding = only(&ideal(8, |id, row| match id % 10 {
        5 | 6 => DeviceRow { kind: "memcpy", name: "Memcpy HtoD (Pinned -> Device)", ..row },
        _ => row,
    }));
    assert_eq!(finding.rule, "exposed_copies");
    assert!(finding.text.contains("24 copies"), "{}", finding.text);
}

#[test]
fn one_kernel_with_most_of_the_time_and_matrix_products_in_full_precision() {
    let finding =
        only(&ideal(8, |id, row| if id % 10 < 5 { DeviceRow { name: "flash_fwd<bf16>", ..row } } else { row }));
    assert_eq!(finding.rule, "dominant_kernel");
    assert!(finding.text.contains("flash_fwd") && finding.text.contains("40 runs of 1.2 ms"), "{}", finding.text);
    let finding = only(&ideal(8, |id, row| match id % 10 {
        0 => DeviceRow { name: "ampere_sgemm_128x64_nn", ..row },
        _ => row,
    }));
    assert_eq!((finding.rule, finding.ns), ("low_tensor_core_use", 8 * 1_250_000));
    assert!(finding.text.contains("A100"), "{}", finding.text);
}

#[test]
fn steps_far_longer_than_the_median() {
    let mut synthetic = ideal(8, |_, row| row);
    for step in 0..20 {
        let name = format!("step_{step}");
        let long = if step == 3 { 3_000_000 } else { 0 };
        let at = step * 1_000_000 + if step > 3 { 3_000_000 } else { 0 };
        synthetic.push(&host("annotation", &name, 1, at, 1_000_000 + long));
    }
    let finding = only(&synthetic);
    assert_eq!((finding.rule, finding.ns), ("step_outliers", 3_000_000));
    assert!(finding.text.starts_with("1 of 20 steps is"), "{}", finding.text);
}

#[test]
fn late_ranks_and_uneven_devices() {
    let mut synthetic = Synthetic::new();
    for rank in 0..2 {
        synthetic.rank(rank, &[], &[]).track(rank, 10 * rank, "thread", None).track(
            rank,
            10 * rank + 7,
            "stream",
            Some(7),
        );
        for step in 0..8 {
            let (at, id) = (step * 10_000_000, 10 * step);
            // Rank 1 computes for 9 ms, rank 0 for 6 ms and waits in the collective.
            let parts = if rank == 1 { [3_000_000; 3] } else { [2_000_000; 3] };
            let mut end = at;
            for (number, dur) in parts.into_iter().enumerate() {
                let name = ["a<c10::Half>", "b<c10::Half>", "c<c10::Half>"][number];
                let launch = call("cudaLaunchKernel", 10 * rank, at - 10_000_000, 1_000, id + number as i64);
                synthetic.push(&HostRow { rank, ..launch });
                let row = kernel(name, 7, end, dur, id + number as i64);
                synthetic.push(&DeviceRow { rank, track: 10 * rank + 7, ..row });
                end += dur;
            }
            let row = kernel("ncclDevKernel_AllReduce", 7, end, at + 10_000_000 - end, id + 5);
            let row = DeviceRow { rank, track: 10 * rank + 7, group: Some("0"), sequence: Some(step), ..row };
            synthetic.push(&row);
        }
    }
    let found = found(&synthetic);
    let of =
        |rule: &str| found.iter().find(|finding| finding.rule == rule).unwrap_or_else(|| panic!("{rule}: {found:#?}"));
    let late = of("stragglers");
    assert_eq!((late.ns, late.ranks.as_slice()), (8 * 3_000_000, [1].as_slice()));
    assert!(late.text.contains("Rank 1 comes last"), "{}", late.text);
    let uneven = of("imbalance");
    assert_eq!((uneven.ns, uneven.devices.as_slice()), (8 * 3_000_000, [(0, 0)].as_slice()));
    let sentence = "GPU 0 of rank 0 computes 24.0 ms (30 % of the longest span, 80.0 ms) less than GPU 0 of rank 1, which computes for 72.0 ms:";
    assert!(uneven.text.contains(sentence), "{}", uneven.text);
    assert_eq!(uneven.share, 0.15);
    assert!(of("exposed_communication").text.contains("Both ranks (most: rank 0) spend up to 40 %"), "{found:#?}");
}

#[test]
fn a_full_queue() {
    let mut synthetic = Synthetic::new();
    synthetic.rank(0, &[1], &[7]);
    let names = ["a<c10::Half>", "b<c10::Half>", "c<c10::Half>", "d<c10::Half>"];
    for number in 0..3000 {
        synthetic.push(&call("cudaLaunchKernel", 1, number * 100, 90, number));
        synthetic.push(&kernel(names[number as usize % 4], 7, 200 + number * 50_000, 50_000, number));
    }
    let finding = only(&synthetic);
    assert_eq!(finding.rule, "queue_full");
}

#[test]
fn a_warning_comes_before_all_else() {
    let mut synthetic = starved(12_000, |_, _| {});
    synthetic.diagnostic("truncated", 1, "the file ends in the middle");
    synthetic.diagnostic("zero_duration", 100_000, "harmless");
    let found = found(&synthetic);
    assert_eq!(found.iter().map(|finding| finding.rule).collect::<Vec<_>>(), ["unreliable_input", "launch_bound"]);
    let lost = ideal(8, |id, row| match id % 10 {
        7 => DeviceRow { ts: 0, dur: 0, flag: Some("lost_timestamp"), ..row },
        _ => row,
    });
    let (run, profile, _dir) = lost.load();
    let analyses = analyse(&run, &profile, &Options::default()).unwrap();
    let found = findings(&run, &profile, &analyses, &[]).unwrap();
    assert_eq!(found[0].rule, "unreliable_input");
    assert!(found[0].text.contains("10 % of device events (8)"), "{}", found[0].text);
}

#[test]
fn a_device_that_hardly_works_is_measured_by_the_span_of_the_busiest() {
    let mut synthetic = Synthetic::new();
    for (rank, dur) in [(0, 10), (1, 400_000_000)] {
        synthetic.rank(rank, &[], &[]).track(rank, 10 * rank + 7, "stream", Some(7));
        for number in 0..12 {
            let row =
                kernel(["a<bf16>", "b<bf16>", "c<bf16>", "d<bf16>"][number as usize % 4], 7, number * dur, dur, number);
            synthetic.push(&DeviceRow { rank, track: 10 * rank + 7, ..row });
        }
    }
    let finding = only(&synthetic);
    assert_eq!((finding.rule, finding.devices.as_slice()), ("imbalance", [(0, 0)].as_slice()));
    assert!(finding.text.contains("computes 4.8 s (100 % of the longest span, 4.8 s) less"), "{}", finding.text);
    assert!((0.49..0.51).contains(&finding.share), "{}", finding.share);
}

#[test]
fn a_step_that_is_cut_off_is_no_step() {
    let steps = |durations: &[i64]| {
        let mut synthetic = Synthetic::new();
        synthetic.rank(0, &[1], &[7]).push(&kernel("a", 7, 0, 10, 1));
        let mut at = 0;
        for (number, &dur) in durations.iter().enumerate() {
            let name = format!("ProfilerStep#{number}");
            synthetic.push(&host("annotation", &name, 1, at, dur));
            at += dur;
        }
        let (run, profile, _dir) = synthetic.load();
        let analyses = analyse(&run, &profile, &Options::default()).unwrap();
        StepTimes::of(&analyses.ranks[0].steps[0], at)
    };
    let whole = |all_ns, mean_ns| Some(StepTimes { all_ns, mean_ns });
    assert_eq!(steps(&[100, 104, 102]), whole(306, 102.0));
    // The last was cut by the end of the record, those of a tenth were begun only.
    assert_eq!(steps(&[100, 104, 50]), whole(254, 102.0));
    assert_eq!(steps(&[100, 104, 9, 102]), whole(315, 102.0));
    // A short one between others is one.
    assert_eq!(steps(&[100, 50, 102]), whole(252, 84.0));
}

#[test]
fn what_is_said_of_each_step_holds_for_each() {
    // Steps of 10 ms, the last of them cut to 1 ms; idle for `gap` ns in the first `with` of them.
    let text = |gap: i64, with: i64| {
        let mut synthetic = Synthetic::new();
        synthetic.rank(0, &[1], &[7]);
        for step in 0..5 {
            let at = step * 10_000_000;
            let length = if step == 4 { 2_500_000 } else { 10_000_000 };
            let name = format!("ProfilerStep#{step}");
            synthetic.push(&host("annotation", &name, 1, at, length));
            let idle = if step < with { gap } else { 0 };
            for part in 0..length / 2_500_000 {
                let (start, id) = (at + part * 2_500_000, step * 10 + part);
                let late = if part == 1 { idle } else { 0 };
                synthetic.push(&call("cudaLaunchKernel", 1, start + late - 5_000, 4_000, id));
                let name = ["a<bf16>", "b<bf16>", "c<bf16>", "d<bf16>"][part as usize];
                synthetic.push(&kernel(name, 7, start + late, 2_500_000 - late, id));
            }
        }
        let finding = found(&synthetic).into_iter().find(|finding| finding.rule == "host_work").unwrap();
        finding.text
    };
    let each = text(2_000_000, 4);
    assert!(each.contains("19 % of each step (1.9 ms on average) in 4 gaps"), "{each}");
    let once = text(2_400_000, 1);
    assert!(once.contains("5.6 % of the time (2.4 ms of 42.5 ms) in 1 gap of 1 ms or more (longest 2.4 ms)"), "{once}");
}

#[test]
fn the_second_of_two_sentences_on_the_same_time_says_so() {
    let finding = |rule, ns| Finding {
        rule,
        text: "It waits.".into(),
        ns,
        share: 0.5,
        ranks: vec![0],
        devices: Vec::new(),
        link: None,
    };
    let second = |one, other| {
        let mut found = [finding("launch_bound", 500), one, other];
        tell_overlap(&mut found);
        assert!(found[..2].iter().all(|finding| finding.text == "It waits."));
        found[2].text.clone()
    };
    let part = second(finding("exposed_communication", 100), finding("stragglers", 80));
    assert_eq!(part, "It waits. This is part of the communication above, not more time.");
    let part = second(finding("stragglers", 100), finding("exposed_communication", 90));
    assert_eq!(part, "It waits. This is part of the waiting above, not more time.");
    assert_eq!(second(finding("exposed_communication", 100), finding("stragglers", 79)), "It waits.");
    assert_eq!(second(finding("exposed_communication", 100), finding("host_work", 100)), "It waits.");
}

#[test]
fn a_critical_path_that_misses_the_device_names_no_one() {
    // The device works for 400 of 1588 µs; an operator of the host is there all the time.
    let said = |paths: fn(&mut CriticalPath)| {
        let mut synthetic = starved(12_000, |_, _| {});
        synthetic.push(&operator("op", 1, 0, 1_700_000));
        let (run, profile, _dir) = synthetic.load();
        let analyses = analyse(&run, &profile, &Options::default()).unwrap();
        let mut path = critical_path(&run, &profile, 0, &Window::Whole, 5).unwrap().unwrap();
        paths(&mut path);
        findings(&run, &profile, &analyses, &[path]).unwrap()[0].text.contains("of the critical path")
    };
    assert!(said(|_| {}));
    assert!(!said(|path| path.launches = 0));
    assert!(!said(|path| path.length_ns = 100_000));
}

#[test]
fn times_that_no_clock_has_do_not_overflow() {
    const LONG: i64 = 1 << 59;
    let mut synthetic = Synthetic::new();
    for rank in 0..9 {
        let track = |of: i64| 100 * rank + of;
        synthetic.rank(rank, &[], &[]).track(rank, track(1), "thread", None).model(rank, "Tesla V100-SXM2-16GB");
        for stream in [7, 8] {
            synthetic.track(rank, track(stream), "stream", Some(stream));
        }
        for number in 0..24 {
            let at = (number - 12) * (LONG / 10);
            let name = format!("ProfilerStep#{number}");
            synthetic.push(&HostRow { rank, ..host("annotation", &name, track(1), at, LONG) });
            synthetic.push(&HostRow { rank, ..operator("op", track(1), at, LONG) });
            synthetic.push(&HostRow { rank, ..call("cudaDeviceSynchronize", track(1), at, LONG, 100 + number) });
            synthetic.push(&HostRow { rank, ..call("cudaLaunchKernel", track(1), at, LONG, number) });
            let stream = 7 + number % 2;
            let name =
                ["volta_sgemm", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)"][number as usize % 3];
            let row = device(if number % 3 == 2 { "memcpy" } else { "kernel" }, name, stream, at, LONG, number);
            let row = DeviceRow { rank, track: track(stream), bytes: Some(i64::MAX), ..row };
            synthetic.push(&DeviceRow { group: Some("0"), sequence: Some(number), ..row });
        }
    }
    let (run, profile, _dir) = synthetic.load();
    for hta_compat in [false, true] {
        let analyses = analyse(&run, &profile, &Options { hta_compat, ..Options::default() }).unwrap();
        let paths = run.ranks.iter().map(|of| critical_path(&run, &profile, of.info.rank, &Window::Whole, 5).unwrap());
        let found = findings(&run, &profile, &analyses, &paths.flatten().collect::<Vec<_>>()).unwrap();
        assert!(found.iter().all(|finding| (0.0..=1.0).contains(&finding.share)), "{found:?}");
        let side = crate::analysis::diff::Side { run: &run, analyses: &analyses };
        let diff = crate::analysis::diff::diff(side, side, &crate::analysis::diff::Options::default());
        assert_eq!(diff.total.kernels.control_ns, diff.total.kernels.test_ns);
        assert_eq!(analyses.ranks.len(), 9);
    }
}
