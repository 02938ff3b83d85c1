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
    assert!(uneven.text.contains("GPU 0 of rank 0 computes"), "{}", uneven.text);
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
