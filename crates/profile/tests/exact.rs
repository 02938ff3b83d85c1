//! The analyses against `../shared/traces/expected/exact`: to the nanosecond.

mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use profile::analysis::{self, Analyses, Options};
use profile::{DeviceKind, Host, Run};
use support::{naive, tables};
use trace::schema::{Kind, Table};
use trace::{NO_INT, Profile};

/// Imports a set naively and analyses it.
fn analyse(files: &[PathBuf]) -> (Run, Analyses) {
    let dir = tempfile::tempdir().unwrap();
    let profile = naive::import(files, &dir.path().join("p"));
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let analyses = analysis::analyse(&run, &profile, &Options::default()).unwrap();
    (run, analyses)
}

/// Compares one set's analyses with its rows of both tables.
fn compare(set: &str, files: &[PathBuf], summary: &[tables::Row], kernels: &[tables::Row]) {
    let (run, analyses) = analyse(files);
    let of_rank = |row: &tables::Row| row.text("rank").parse::<i64>().unwrap_or(0);
    let mut seen = 0;
    for row in summary.iter().filter(|row| row.text("set") == set) {
        let rank = analyses.ranks.iter().find(|rank| rank.rank == of_rank(row)).unwrap();
        // The reference does not add the base.
        let base = run.ranks.iter().find(|events| events.info.rank == rank.rank).unwrap().info.base_ns;
        let temporal = &rank.temporal;
        let check = |column: &str, value: i64| assert_eq!(value, row.int(column), "{set} rank {}: {column}", rank.rank);
        check("gpu_events", temporal.events as i64);
        check("first_ns", temporal.first_ns - base);
        check("last_ns", temporal.last_ns - base);
        check("span_ns", temporal.span_ns);
        check("busy_ns", temporal.busy_ns);
        check("idle_ns", temporal.idle_ns);
        check("compute_ns", temporal.compute_ns);
        check("non_compute_ns", temporal.non_compute_ns);
        check("comm_ns", temporal.communication_ns);
        check("mem_ns", temporal.memory_ns);
        check("comp_comm_overlap_ns", temporal.overlap_ns);
        check("zero_dur", temporal.zero_duration as i64);
        check("neg_dur", temporal.negative_duration as i64);
        let percent = |column: &str, share: Option<f64>| match (row.number(column), share) {
            (None, None) => {}
            (Some(expected), Some(share)) => {
                assert!((100.0 * share - expected).abs() < 5.1e-5, "{set} {column}: {share} for {expected} %")
            }
            other => panic!("{set} {column}: {other:?}"),
        };
        percent("overlap_pct_of_comm", rank.overlap.share);
        percent("idle_pct", Some(temporal.idle_share));
        percent("compute_pct", Some(temporal.compute_share));
        seen += 1;
    }
    assert_eq!(seen, analyses.ranks.len(), "{set}");

    let mut rows: HashMap<(i64, &str, &str), &tables::Row> = HashMap::new();
    for row in kernels.iter().filter(|row| row.text("set") == set) {
        rows.insert((of_rank(row), row.text("class"), row.text("name")), row);
    }
    for rank in &analyses.ranks {
        for kernel in &rank.kernels.rows {
            let class = match kernel.class {
                "compute" => "comp",
                "communication" => "comm",
                "memory" => "mem",
                other => panic!("{other}"),
            };
            let row = rows
                .remove(&(rank.rank, class, &kernel.name))
                .unwrap_or_else(|| panic!("{set} rank {}: no row for {class} {}", rank.rank, kernel.name));
            let durations = &kernel.durations;
            assert_eq!(durations.count as i64, row.int("count"), "{set} {}", kernel.name);
            assert_eq!(durations.sum_ns, row.int("sum_ns"), "{set} {}", kernel.name);
            assert_eq!(durations.min_ns, row.int("min_ns"), "{set} {}", kernel.name);
            assert_eq!(durations.max_ns, row.int("max_ns"), "{set} {}", kernel.name);
            assert!((durations.mean_ns - row.number("mean_ns").unwrap()).abs() < 5.1e-4, "{set} {}", kernel.name);
        }
    }
    assert!(rows.is_empty(), "{set}: not found: {:?}", rows.keys().collect::<Vec<_>>());
}

fn compare_all(traces: &Path, summary: &str, kernels: &str, folder: &str) -> usize {
    let expected = traces.join("expected/exact");
    let (summary, kernels) = (tables::read(&expected.join(summary)), tables::read(&expected.join(kernels)));
    let mut sets: Vec<&str> = summary.iter().map(|row| row.text("set")).collect();
    sets.dedup();
    for set in &sets {
        compare(set, &support::files(&traces.join(folder).join(set)), &summary, &kernels);
    }
    sets.len()
}

#[test]
fn every_set_is_exact() {
    let Some(traces) = support::traces() else { return };
    assert_eq!(compare_all(&traces, "summary_ns.csv", "kernels_ns.csv", ""), 10);
}

#[test]
fn every_edge_case_is_exact() {
    let Some(traces) = support::traces() else { return };
    assert_eq!(compare_all(&traces, "edge-cases_summary_ns.csv", "edge-cases_kernels_ns.csv", "edge-cases"), 6);
}

/// Everything of a slice that both readers must agree on.
fn slices(profile: &Profile, table: Table, columns: &[&str]) -> Vec<String> {
    let rows = profile.read(table, columns).unwrap();
    let value = |row: usize, column: &str| {
        let spec = table.columns()[table.column(column).unwrap()];
        match spec.kind {
            Kind::Int => format!("{:?}", Some(rows.ints(column)[row]).filter(|value| *value != NO_INT)),
            Kind::Float => format!("{:?}", rows.floats(column)[row]),
            Kind::Text => rows.text(rows.texts(column)[row]).to_owned(),
        }
    };
    let row = |row: usize| columns.iter().map(|column| value(row, column)).collect::<Vec<_>>().join("|");
    let mut slices: Vec<String> = (0..rows.len()).map(row).collect();
    slices.sort_unstable();
    slices
}

#[test]
fn the_importer_reads_the_same_slices_as_the_plainest_reader() {
    let Some(traces) = support::traces() else { return };
    let sets = [
        "dlrm-8ranks",
        "a100-nccl",
        "v100-ns",
        "rn50-2021",
        "edge-cases/amd-mi250",
        "edge-cases/critical-path-simple-add",
    ];
    for set in sets {
        let files = support::files(&traces.join(set));
        let dir = tempfile::tempdir().unwrap();
        let plain = naive::import(&files, &dir.path().join("plain"));
        let path = dir.path().join("imported");
        profile::import::import(&files, &path, &profile::import::Options::default()).unwrap();
        let imported = Profile::open(&path).unwrap();
        let device = [
            "rank",
            "device",
            "stream",
            "ts",
            "dur",
            "kind",
            "category",
            "name",
            "correlation",
            "external_id",
            "bytes",
            "bandwidth",
            "group",
            "sequence",
            "dtype",
            "flag",
        ];
        let host = [
            "rank",
            "ts",
            "dur",
            "kind",
            "category",
            "name",
            "correlation",
            "external_id",
            "sequence",
            "inputs",
            "flag",
        ];
        for (table, columns) in [(Table::Device, &device[..]), (Table::Host, &host[..])] {
            let (ours, theirs) = (slices(&imported, table, columns), slices(&plain, table, columns));
            assert_eq!(ours.len(), theirs.len(), "{set} {table:?}");
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours, theirs, "{set} {table:?}");
            }
        }
    }
}

#[test]
fn nsight_kernels_are_exact() {
    let Some(traces) = support::traces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    profile::import::import(&[traces.join("nsys-h100")], &path, &profile::import::Options::default()).unwrap();
    let profile = Profile::open(&path).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let mut kernels: HashMap<(i64, &str), Vec<i64>> = HashMap::new();
    for event in run.ranks.iter().flat_map(|rank| &rank.device).filter(|event| event.kind == DeviceKind::Kernel) {
        kernels.entry((event.device, run.text(event.name))).or_default().push(event.dur);
    }
    let rows = tables::read(&traces.join("expected/exact/nsys-h100_kernels_ns.csv"));
    assert_eq!(rows.len(), 82);
    for row in &rows {
        let durations = kernels.remove(&(row.int("deviceId"), row.text("name"))).unwrap_or_default();
        assert_eq!(durations.len() as i64, row.int("count"), "{row:?}");
        assert_eq!(durations.iter().sum::<i64>(), row.int("sum_ns"), "{row:?}");
        assert_eq!(durations.iter().min(), Some(&row.int("min_ns")), "{row:?}");
        assert_eq!(durations.iter().max(), Some(&row.int("max_ns")), "{row:?}");
    }
    assert!(kernels.is_empty(), "{:?}", kernels.keys());

    // The analyses' own table has the same sums, and copies by direction are those of the reference's notes.
    let analyses = analysis::analyse(&run, &profile, &Options::default()).unwrap();
    let all: i64 =
        analyses.kernels.rows.iter().filter(|row| row.class != "memory").map(|row| row.durations.sum_ns).sum();
    assert_eq!(all, 22_385_163 + 22_444_359);
    let copies = |direction: &str| {
        let operations = analyses.ranks.iter().flat_map(|rank| &rank.memory).filter(|one| one.direction == direction);
        operations.fold((0, 0), |sum, one| (sum.0 + one.durations.count, sum.1 + one.bytes))
    };
    assert_eq!(copies("Memcpy HtoD"), (450, 50_950_507_584));
    assert_eq!(copies("Memcpy DtoD"), (450, 2 * 29_684_236_288));
    assert_eq!(copies("Memcpy DtoH"), (4, 18));
}

/// What names and operands leave unknown. (Names alone leave 38 % of the first.)
#[test]
fn few_precisions_stay_unknown() {
    let Some(traces) = support::traces() else { return };
    for (set, most) in [
        ("a100-6streams", 0.064),
        ("a100-nccl", 0.021),
        ("v100-test", 0.015),
        ("a100-control", 0.001),
        ("h100-stacks", 0.001),
    ] {
        let (_, analyses) = analyse(&support::files(&traces.join(set)));
        let unknown = analyses.precisions.unknown_share;
        assert!(unknown < most, "{set}: {unknown}");
        let parts = analyses.precisions.parts.iter();
        let (all, known) = parts.fold((0, 0), |sum, part| {
            (sum.0 + part.ns, sum.1 + part.by_name_ns + part.by_dtype_ns + part.by_operands_ns)
        });
        assert!((1.0 - known as f64 / all as f64 - unknown).abs() < 1e-9, "{set}");
    }
}
