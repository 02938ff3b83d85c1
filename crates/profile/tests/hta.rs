//! HTA-compatible mode against what HTA 0.5.0 answers (`../shared/traces/expected/hta`).

mod support;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use profile::analysis::{self, Analyses, Distribution, Idle, Options, RankAnalyses, Summary};
use profile::{Host, Run};
use support::{naive, tables};

const SETS: [&str; 12] = [
    "dlrm-8ranks",
    "a100-control",
    "v100-test",
    "v100-multistep",
    "v100-ns",
    "a100-nccl",
    "a100-6streams",
    "sampled-2ranks",
    "rn50-2021",
    "h100-stacks",
    "cuda-event-sync-multi-stream",
    "critical-path-simple-add",
];

/// What is compared, and all that differs.
struct Comparison {
    set: String,
    values: usize,
    wrong: Vec<String>,
}

impl Comparison {
    /// Both are equal, but for the last digit of HTA's printed number.
    fn equal(&mut self, what: &str, ours: f64, theirs: f64, printed: f64) {
        self.values += 1;
        let same = (ours - theirs).abs() <= printed + theirs.abs() * 1e-9;
        if !same {
            self.wrong.push(format!("{} {what}: {ours} for {theirs}", self.set));
        }
    }

    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        self.values += 1;
        if !holds {
            self.wrong.push(format!("{} {}", self.set, what()));
        }
    }
}

/// HTA-compatible analyses of a set, computed once.
fn analyse(traces: &Path, set: &'static str) -> Arc<Analyses> {
    static DONE: Mutex<BTreeMap<&str, Arc<Analyses>>> = Mutex::new(BTreeMap::new());
    let mut done = DONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.entry(set).or_insert_with(|| Arc::new(analyse_anew(traces, set))).clone()
}

fn analyse_anew(traces: &Path, set: &str) -> Analyses {
    let folder =
        [traces.join(set), traces.join("edge-cases").join(set)].into_iter().find(|path| path.exists()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let profile = naive::import(&support::files(&folder), &dir.path().join("p"));
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let options = Options { hta_compat: true, top: 100_000, ..Options::default() };
    analysis::analyse(&run, &profile, &options).unwrap()
}

/// The rows of one of HTA's tables, where it has it.
fn rows(traces: &Path, set: &str, table: &str) -> Vec<tables::Row> {
    let path = traces.join("expected/hta").join(set).join(format!("{table}.csv"));
    if path.exists() { tables::read(&path) } else { Vec::new() }
}

fn rank_of<'a>(analyses: &'a Analyses, row: &tables::Row) -> &'a RankAnalyses {
    let rank = row.int("rank");
    analyses.ranks.iter().find(|analysed| analysed.rank == rank).unwrap()
}

/// Half a unit of the sixth decimal, and of the second.
const SIX: f64 = 5.1e-7;
const TWO: f64 = 5.1e-3;

fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

fn temporal(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    for row in rows(traces, set, "temporal_breakdown") {
        let temporal = &rank_of(analyses, &row).temporal;
        let mut check = |column: &str, ours: f64, printed: f64| {
            to.equal(&format!("temporal {column}"), ours, row.number(column).unwrap(), printed);
        };
        check("compute_time(us)", us(temporal.compute_ns), SIX);
        check("idle_time(us)", us(temporal.idle_ns), SIX);
        check("non_compute_time(us)", us(temporal.non_compute_ns), SIX);
        check("kernel_time(us)", us(temporal.span_ns), SIX);
        check("idle_time_pctg", 100.0 * temporal.idle_share, TWO);
        check("compute_time_pctg", 100.0 * temporal.compute_share, TWO);
        check("non_compute_time_pctg", 100.0 * temporal.non_compute_share, TWO);
    }
    for row in rows(traces, set, "comm_comp_overlap") {
        let overlap = &rank_of(analyses, &row).overlap;
        match (overlap.share, row.number("comp_comm_overlap_pctg")) {
            (None, None) => {}
            (Some(ours), Some(theirs)) => to.equal("overlap", 100.0 * ours, theirs, TWO),
            other => to.check(false, || format!("overlap {other:?}")),
        }
    }
}

fn kernels(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    let mut types: HashMap<String, f64> = HashMap::new();
    let word = |class: &str| match class {
        "compute" => "COMPUTATION",
        "communication" => "COMMUNICATION",
        "memory" => "MEMORY",
        other => panic!("{other}"),
    };
    for one in &analyses.kernel_types {
        let words: Vec<&str> = one.classes.iter().map(|class| word(class)).collect();
        types.insert(words.join(" overlapping "), us(one.ns));
    }
    let expected = rows(traces, set, "kernel_type_breakdown");
    for row in &expected {
        let name = row.text("kernel_type");
        let ours = types.remove(name).unwrap_or(0.0);
        to.equal(&format!("kernel type {name}"), ours, row.number("sum").unwrap(), SIX);
    }
    to.check(types.is_empty(), || format!("kernel types HTA has not: {types:?}"));

    let mut theirs: HashMap<(i64, String, String), tables::Row> = HashMap::new();
    for row in rows(traces, set, "kernels") {
        theirs.insert((row.int("rank"), row.text("kernel_type").into(), row.text("name").into()), row);
    }
    for rank in &analyses.ranks {
        for kernel in &rank.kernels.rows {
            let Some(row) = theirs.remove(&(rank.rank, word(kernel.class).into(), kernel.name.clone())) else {
                to.check(false, || format!("kernel HTA has not: {} {}", kernel.class, kernel.name));
                continue;
            };
            let durations = &kernel.durations;
            let mut check = |column: &str, ours: f64| {
                to.equal(&format!("{} {column}", kernel.name), ours, row.number(column).unwrap(), SIX);
            };
            check("sum (us)", us(durations.sum_ns));
            check("max (us)", us(durations.max_ns));
            check("min (us)", us(durations.min_ns));
            check("mean (us)", durations.mean_ns / 1e3);
            check("stddev", durations.std_ns.unwrap_or(0.0) / 1e3);
        }
    }
    to.check(theirs.is_empty(), || format!("kernels only HTA has: {:?}", theirs.keys().collect::<Vec<_>>()));
}

fn idle(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    let find = |rank: &RankAnalyses, row: &tables::Row| -> Idle {
        let stream = rank.idle.iter().find(|idle| idle.stream == row.int("stream")).unwrap();
        match row.text("idle_category") {
            "host_wait" => stream.host_wait.clone(),
            "kernel_wait" => stream.kernel_wait.clone(),
            "other" => stream.other.clone(),
            other => panic!("{other}"),
        }
    };
    for rank in &analyses.ranks {
        for row in rows(traces, set, &format!("idle_breakdown_rank{}", rank.rank)) {
            let idle = find(rank, &row);
            let what = format!("rank {} stream {} {}", rank.rank, row.text("stream"), row.text("idle_category"));
            to.equal(&what, us(idle.gaps.sum_ns), row.number("idle_time").unwrap(), TWO);
            // HTA divides 0 by 0 where a stream is never idle.
            if let Some(ratio) = row.number("idle_time_ratio") {
                to.equal(&format!("{what} ratio"), idle.share, ratio, TWO);
            }
        }
        for row in rows(traces, set, &format!("idle_interval_stats_rank{}", rank.rank)) {
            let gaps = find(rank, &row).gaps;
            let what = format!("rank {} stream {} {} gaps", rank.rank, row.text("stream"), row.text("idle_category"));
            describe(to, &what, &row, &gaps, ["25%", "50%", "75%"], TWO);
        }
    }
}

/// pandas' `describe()` in µs.
fn describe(
    to: &mut Comparison,
    what: &str,
    row: &tables::Row,
    ours: &Distribution,
    quartiles: [&str; 3],
    printed: f64,
) {
    to.equal(&format!("{what} count"), ours.count as f64, row.number("count").unwrap(), 0.0);
    if ours.count == 0 {
        return;
    }
    let mut check = |column: &str, ours: f64| {
        if let Some(theirs) = row.number(column) {
            to.equal(&format!("{what} {column}"), ours / 1e3, theirs, printed);
        }
    };
    check("mean", ours.mean_ns);
    check("std", ours.std_ns.unwrap_or(f64::NAN));
    check("min", ours.min_ns as f64);
    check(quartiles[0], ours.p25_ns);
    check(quartiles[1], ours.median_ns);
    check(quartiles[2], ours.p75_ns);
    check("max", ours.max_ns as f64);
}

fn summary(to: &mut Comparison, what: &str, row: &tables::Row, ours: &Summary) {
    to.equal(&format!("{what} count"), ours.count as f64, row.number("count").unwrap(), 0.0);
    let mut check = |column: &str, ours: f64| {
        if let Some(theirs) = row.number(column) {
            to.equal(&format!("{what} {column}"), ours, theirs, SIX);
        }
    };
    check("mean", ours.mean);
    check("std", ours.std.unwrap_or(f64::NAN));
    check("min", ours.min);
    check("p25", ours.p25);
    check("p50", ours.median);
    check("p75", ours.p75);
    check("max", ours.max);
}

fn queues(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    for row in rows(traces, set, "queue_length_summary") {
        let rank = rank_of(analyses, &row);
        let Some(queue) = rank.queues.iter().find(|queue| queue.stream == row.int("stream")) else {
            to.check(false, || format!("no queue of stream {}", row.text("stream")));
            continue;
        };
        summary(to, &format!("queue {}", queue.stream), &row, &queue.at_changes);
    }
}

fn memory(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    for row in rows(traces, set, "memory_bw_summary") {
        let rank = rank_of(analyses, &row);
        let Some(operation) = rank.memory.iter().find(|operation| operation.direction == row.text("name")) else {
            to.check(false, || format!("no {}", row.text("name")));
            continue;
        };
        summary(to, &operation.direction, &row, &operation.bandwidth);
    }
}

fn launches(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    for rank in &analyses.ranks {
        let launches = &rank.launches;
        for row in rows(traces, set, &format!("launch_stats_describe_rank{}", rank.rank)) {
            let stat = row.text("stat").to_owned();
            for (column, ours) in
                [("cpu_duration", &launches.call), ("gpu_duration", &launches.event), ("launch_delay", &launches.delay)]
            {
                let ours = match stat.as_str() {
                    "count" => ours.count as f64 * 1e3,
                    "mean" => ours.mean_ns,
                    "std" => ours.std_ns.unwrap_or(f64::NAN),
                    "min" => ours.min_ns as f64,
                    "50%" => ours.median_ns,
                    "90%" => ours.p90_ns,
                    "99%" => ours.p99_ns,
                    "max" => ours.max_ns as f64,
                    other => panic!("{other}"),
                };
                if let Some(theirs) = row.number(column) {
                    to.equal(&format!("launch {stat} {column}"), ours / 1e3, theirs, SIX);
                }
            }
        }
    }
}

fn annotations(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    for (table, on) in [("annotations_cpu", "host"), ("annotations_gpu", "device")] {
        for row in rows(traces, set, table) {
            let rank = rank_of(analyses, &row);
            let name = row.text("name");
            let Some(ours) = rank.annotations.iter().find(|one| one.on == on && one.name == name) else {
                to.check(false, || format!("no annotation {name} on {on}"));
                continue;
            };
            let durations = &ours.durations;
            let mut check = |column: &str, ours: f64| {
                to.equal(&format!("{on} {name} {column}"), ours, row.number(column).unwrap(), SIX);
            };
            check("sum (us)", us(durations.sum_ns));
            check("max (us)", us(durations.max_ns));
            check("min (us)", us(durations.min_ns));
            check("mean (us)", durations.mean_ns / 1e3);
            check("stddev", durations.std_ns.unwrap_or(0.0) / 1e3);
        }
    }
}

/// The first 2,000 pairs in HTA's order, which is that of the file: by correlation, they are ours.
fn first_pairs(traces: &Path, set: &str, analyses: &Analyses, to: &mut Comparison) {
    for rank in &analyses.ranks {
        let mut ours: HashMap<i64, Vec<[i64; 3]>> = HashMap::new();
        for pair in &rank.launches.longest {
            ours.entry(pair.correlation).or_default().push([pair.call_dur_ns, pair.event_dur_ns, pair.delay_ns]);
        }
        for row in rows(traces, set, &format!("launch_stats_first2000_rank{}", rank.rank)) {
            let theirs = ["cpu_duration", "gpu_duration", "launch_delay"].map(|column| row.int(column) * 1_000);
            let found = ours.get(&row.int("correlation")).is_some_and(|pairs| pairs.contains(&theirs));
            to.check(found, || format!("no pair {row:?}"));
        }
    }
}

/// Compares a table of all sets, but for what `but` takes out; at least `values` values.
fn compare(part: fn(&Path, &str, &Analyses, &mut Comparison), values: usize, but: impl Fn(&str) -> bool) {
    let Some(traces) = support::traces() else { return };
    let mut compared = 0;
    let mut wrong = Vec::new();
    for set in SETS {
        let mut to = Comparison { set: set.into(), values: 0, wrong: Vec::new() };
        part(&traces, set, &analyse(&traces, set), &mut to);
        compared += to.values;
        wrong.extend(to.wrong.into_iter().filter(|what| !but(what)));
    }
    assert!(wrong.is_empty(), "{} of {compared} values differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= values, "only {compared} values");
}

/// Temporal breakdown and overlap are equal but for one trace: there HTA takes 4294967295, an unsigned -1, for a stream, and so
/// counts five `Context Sync`s as work. (Computation is equal there too, and its percentage is of another span.)
#[test]
fn temporal_breakdown() {
    compare(temporal, 100, |what| {
        what.starts_with("critical-path-simple-add temporal")
            && !what.starts_with("critical-path-simple-add temporal compute_time(us)")
    });
}

/// Kernel types and the kernel table are equal everywhere.
#[test]
fn kernel_tables() {
    compare(kernels, 8_000, |_| false);
}

/// Idle time is equal but for two ranks. There 64 device events have no launch on record; HTA joins them with the first row of
/// the file, whatever that is, which in these files is late enough to make host waits of kernel waits.
#[test]
fn idle_breakdown() {
    let excepted = ["dlrm-8ranks rank 1 stream 7", "dlrm-8ranks rank 3 stream 7"];
    compare(idle, 1_400, |what| excepted.iter().any(|except| what.starts_with(except)));
}

/// Queue lengths are equal but for means and standard deviations: HTA sorts by time with an unstable sort, so of a launch and a
/// start in the same µs either may come first. Each such pair shifts one length by 2 among thousands.
#[test]
fn queue_lengths() {
    compare(queues, 500, |what| {
        let mut numbers = what.rsplit(' ').filter_map(|word| word.parse::<f64>().ok());
        let (theirs, ours) = (numbers.next().unwrap(), numbers.next().unwrap());
        (what.contains("mean:") || what.contains("std:")) && (ours - theirs).abs() < 0.025
    });
}

/// Bandwidths are equal but for three: HTA adds and takes away floating-point numbers and then counts points above 0, so what
/// rounding leaves counts as a point; and copies that touch in the same µs are added up where its unstable sort says so.
#[test]
fn memory_bandwidths() {
    let excepted = ["v100-test Memcpy DtoD", "v100-multistep Memcpy DtoD", "v100-ns Memcpy DtoD"];
    compare(memory, 400, |what| excepted.iter().any(|except| what.starts_with(except)));
}

/// Launch statistics are equal everywhere, pair by pair.
#[test]
fn launch_statistics() {
    compare(launches, 400, |_| false);
    compare(first_pairs, 20_000, |_| false);
}

/// Annotations are equal everywhere.
#[test]
fn user_annotations() {
    compare(annotations, 2_200, |_| false);
}

/// Stragglers are equal where HTA names some.
#[test]
fn stragglers() {
    let Some(traces) = support::traces() else { return };
    let expected = tables::read(&traces.join("expected/hta/loaded_rows_and_stragglers.csv"));
    let mut compared = 0;
    for set in ["dlrm-8ranks", "sampled-2ranks"] {
        let row = expected.iter().find(|row| row.text("set") == set).unwrap();
        let theirs: Vec<i64> = row.text("straggler_ranks").split(' ').map(|rank| rank.parse().unwrap()).collect();
        let ours = analyse(&traces, set);
        let ours: Vec<i64> = ours.stragglers.ranks.iter().filter(|rank| rank.straggler).map(|rank| rank.rank).collect();
        assert_eq!(ours, theirs, "{set}");
        compared += 1;
    }
    assert_eq!(compared, 2);
}
