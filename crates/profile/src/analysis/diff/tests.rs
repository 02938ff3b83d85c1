use super::*;
use crate::analysis::synthetic::{Synthetic, call, host, kernel, operator};
use crate::analysis::{self, analyse};

fn compared(control: &Synthetic, test: &Synthetic, options: &Options) -> Diff {
    let (control, control_profile, _dirs) = control.load();
    let (test, test_profile, _dir) = test.load();
    let analyses = |run, profile| analyse(run, profile, &analysis::Options::default()).unwrap();
    let (of_control, of_test) = (analyses(&control, &control_profile), analyses(&test, &test_profile));
    diff(Side { run: &control, analyses: &of_control }, Side { run: &test, analyses: &of_test }, options)
}

/// A rank with two steps and these kernels: name, count, duration.
fn profile(rank: i64, kernels: &[(&str, i64, i64)]) -> Synthetic {
    let mut synthetic = Synthetic::new();
    synthetic.rank(rank, &[1], &[7]);
    let mut at = 0;
    for &(name, count, dur) in kernels {
        for _ in 0..count {
            let call = trace::schema::HostRow { rank, ..call("cudaLaunchKernel", 1, at, 10, at) };
            let kernel = trace::schema::DeviceRow { rank, ..kernel(name, 7, at + 20, dur, at) };
            synthetic.push(&call).push(&kernel);
            at += 20 + dur;
        }
    }
    for step in 0..2 {
        let name = format!("ProfilerStep#{step}");
        let row = host("annotation", &name, 1, step * at / 2, at / 2);
        synthetic.push(&trace::schema::HostRow { rank, ..row });
        synthetic.push(&trace::schema::HostRow { rank, ..operator("aten::mm", 1, step * at / 2, 5) });
    }
    synthetic
}

#[test]
fn every_kind_of_change_is_found_with_its_numbers() {
    let control = profile(
        0,
        &[
            ("removed", 2, 100),
            ("more", 1, 50),
            ("less", 3, 50),
            ("slower", 2, 100),
            ("faster", 2, 100),
            ("same", 2, 100),
        ],
    );
    let test = profile(
        0,
        &[("added", 1, 70), ("more", 2, 50), ("less", 1, 50), ("slower", 2, 106), ("faster", 2, 94), ("same", 2, 105)],
    );
    let diff = compared(&control, &test, &Options::default());
    assert_eq!(diff.scope, Scope::CommonRanks(vec![0]));
    assert!(diff.ranks.is_empty());
    let rows: Vec<_> = diff
        .total
        .kernels
        .rows
        .iter()
        .map(|row| (row.name.as_str(), row.change, row.diff_count, row.diff_ns))
        .collect();
    assert_eq!(
        rows,
        [
            ("removed", Change::Removed, -2, -200),
            ("less", Change::LessOften, -2, -100),
            ("added", Change::Added, 1, 70),
            ("more", Change::MoreOften, 1, 50),
            ("faster", Change::Faster, 0, -12),
            ("slower", Change::Slower, 0, 12),
            ("same", Change::Same, 0, 10),
        ]
    );
    assert_eq!(diff.total.kernels.kinds.iter().map(|kind| kind.names).sum::<u64>(), 7);
    assert_eq!(diff.total.kernels.kinds.iter().map(|kind| kind.diff_ns).sum::<i64>(), -170);
    assert_eq!(diff.total.kernels.test_ns - diff.total.kernels.control_ns, -170);
    let operators = &diff.total.operators.rows;
    assert_eq!((operators.len(), operators[0].name.as_str(), operators[0].change), (1, "aten::mm", Change::Same));
    let steps = &diff.total.steps[0];
    assert_eq!((steps.name.as_str(), steps.control_count, steps.test_count), ("ProfilerStep", 2, 2));
    assert!((steps.ratio - steps.test_mean_ns / steps.control_mean_ns).abs() < 1e-12 && steps.ratio < 1.0);
    let busy = diff.total.breakdown.iter().find(|measure| measure.name == "busy").unwrap();
    assert_eq!(busy.diff_ns, -170);

    let exact = compared(&control, &test, &Options { tolerance: 0.0, top: 1, ..Options::default() });
    assert_eq!(exact.total.kernels.rows.len(), 1);
    assert!(exact.total.kernels.kinds.iter().all(|kind| kind.change != Change::Same));
}

#[test]
fn a_profile_compared_with_itself_is_the_same() {
    let one = profile(0, &[("a", 3, 10), ("b", 2, 20)]);
    let diff = compared(&one, &one, &Options { tolerance: 0.0, ..Options::default() });
    for changes in [&diff.total.kernels, &diff.total.operators] {
        assert!(changes.rows.iter().all(|row| row.change == Change::Same && row.diff_ns == 0));
    }
    assert!(diff.total.breakdown.iter().all(|measure| measure.diff_ns == 0));
    assert_eq!(diff.total.steps[0].ratio, 1.0);
}

#[test]
fn ranks_are_compared_with_their_namesakes_or_all_together() {
    let (zero, three) = (profile(0, &[("a", 1, 10)]), profile(3, &[("a", 2, 10)]));
    let diff = compared(&zero, &three, &Options::default());
    assert_eq!(diff.scope, Scope::AllRanks { control: vec![0], test: vec![3] });
    assert_eq!(diff.total.rank, None);
    assert_eq!(diff.total.kernels.rows[0].change, Change::MoreOften);

    let both = |of_one: i64| {
        let mut synthetic = Synthetic::new();
        synthetic.rank(0, &[], &[7]).rank(1, &[], &[]).track(1, 207, "stream", Some(7));
        synthetic.push(&kernel("a", 7, 0, 10, 1));
        synthetic.push(&trace::schema::DeviceRow { rank: 1, track: 207, ..kernel("a", 7, 0, of_one, 1) });
        synthetic
    };
    let diff = compared(&both(10), &both(20), &Options::default());
    assert_eq!(diff.scope, Scope::CommonRanks(vec![0, 1]));
    let of_ranks: Vec<_> = diff.ranks.iter().map(|of| (of.rank, of.kernels.rows[0].change)).collect();
    assert_eq!(of_ranks, [(Some(0), Change::Same), (Some(1), Change::Slower)]);
    assert_eq!((diff.total.rank, diff.total.kernels.rows[0].control_count), (None, 2));
}

#[test]
fn similar_names_differ_in_arguments_and_addresses_only() {
    assert_eq!(similar("void gemm<float, 4>(float*, int)"), "void gemm<…>(…)");
    assert_eq!(similar("void gemm<half, std::pair<int, int>>(half*)"), "void gemm<…>(…)");
    assert_eq!(similar("hook at 0x7f00deadbeef done"), "hook at 0x… done");
    assert_eq!(similar("Memcpy HtoD (Pageable -> Device)"), "Memcpy HtoD (…)");
    assert_eq!(similar("cut <off"), "cut <off");
    assert_eq!(similar("größer > π"), "größer > π");
    let one = profile(0, &[("gemm<1>", 1, 100), ("gemm<2>", 1, 100)]);
    let other = profile(0, &[("gemm<3>", 2, 100)]);
    assert_eq!(compared(&one, &other, &Options::default()).total.kernels.rows.len(), 3);
    let diff = compared(&one, &other, &Options { similar_names: true, ..Options::default() });
    let rows: Vec<_> = diff.total.kernels.rows.iter().map(|row| (row.name.as_str(), row.change)).collect();
    assert_eq!(rows, [("gemm<…>", Change::Same)]);
}
