//! The diff of two real traces against exact tables of each.

mod support;

use std::collections::BTreeMap;

use profile::analysis::diff::{Change, Options, Scope, Side, diff};
use profile::analysis::{self, analyse};
use profile::{Host, Run};
use support::{files, naive, traces};

#[test]
fn kernels_of_both_sides_are_those_of_the_exact_tables() {
    let Some(traces) = traces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let load = |set: &str| {
        let profile = naive::import(&files(&traces.join(set)), &dir.path().join(set));
        let run = Run::load(&profile, None, Host::Slices).unwrap();
        let analyses = analyse(&run, &profile, &analysis::Options::default()).unwrap();
        (run, analyses)
    };
    let (control, test) = (load("a100-control"), load("v100-test"));
    let side = |of: &'static str| if of == "control" { &control } else { &test };
    let sides = ["control", "test"].map(|of| Side { run: &side(of).0, analyses: &side(of).1 });
    let all = diff(sides[0], sides[1], &Options { top: usize::MAX, ..Options::default() });
    assert_eq!(all.scope, Scope::AllRanks { control: vec![3], test: vec![1] });

    let mut expected: BTreeMap<String, [(u64, i64); 2]> = BTreeMap::new();
    let mut table = csv::Reader::from_path(traces.join("expected/exact/kernels_ns.csv")).unwrap();
    let headers = table.headers().unwrap().clone();
    let at = |name: &str| headers.iter().position(|header| header == name).unwrap();
    for record in table.records().map(Result::unwrap) {
        let side = match &record[at("set")] {
            "a100-control" => 0,
            "v100-test" => 1,
            _ => continue,
        };
        let sum = &mut expected.entry(record[at("name")].to_owned()).or_default()[side];
        *sum =
            (sum.0 + record[at("count")].parse::<u64>().unwrap(), sum.1 + record[at("sum_ns")].parse::<i64>().unwrap());
    }
    assert_eq!(all.total.kernels.rows.len(), expected.len());
    for row in &all.total.kernels.rows {
        let [control, test] = expected[&row.name];
        assert_eq!(
            [(row.control_count, row.control_ns), (row.test_count, row.test_ns)],
            [control, test],
            "{}",
            row.name
        );
        assert_eq!((row.diff_count, row.diff_ns), (test.0 as i64 - control.0 as i64, test.1 - control.1));
        match row.change {
            Change::Added => assert_eq!(control.0, 0),
            Change::Removed => assert_eq!(test.0, 0),
            Change::MoreOften => assert!(test.0 > control.0),
            Change::LessOften => assert!(test.0 < control.0),
            Change::Slower | Change::Faster | Change::Same => assert_eq!(test.0, control.0),
        }
    }
    let order = all.total.kernels.rows.windows(2);
    assert!(order.into_iter().all(|pair| pair[0].diff_ns.abs() >= pair[1].diff_ns.abs()));

    // The span of each, from the exact summary.
    let measure = |name: &str| all.total.breakdown.iter().find(|measure| measure.name == name).unwrap();
    assert_eq!((measure("span").control_ns, measure("idle").control_ns), (464_594_000, 76_007_000));
    assert_eq!(measure("idle").test_ns, 27_296_000);
    assert_eq!(all.total.steps[0].name, "ProfilerStep");

    // Backwards everything is the other way round.
    let back = diff(sides[1], sides[0], &Options { top: usize::MAX, ..Options::default() });
    let names = |diff: &analysis::diff::Diff, change: Change| {
        let rows = diff.total.operators.rows.iter().filter(|row| row.change == change);
        rows.map(|row| row.name.clone()).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(!names(&all, Change::Added).is_empty());
    assert_eq!(names(&all, Change::Added), names(&back, Change::Removed));
    assert_eq!(names(&all, Change::MoreOften), names(&back, Change::LessOften));
}
