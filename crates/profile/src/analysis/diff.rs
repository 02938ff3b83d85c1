//! Two profiles compared: what the test does that the control does not, more or less often, slower or faster.
//!
//! HTA's trace diff (difference = test − control, by name) for kernels and operators, and the breakdown and step times side by side.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Analyses, RankAnalyses};
use crate::{Flag, HostKind, Run};

/// One of the two profiles.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Its events, with the host's slices.
    pub run: &'a Run,
    /// What was found in them.
    pub analyses: &'a Analyses,
}

/// How to compare.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Options {
    /// Rows of each table: those with the largest differences of time.
    pub top: usize,
    /// Means that differ by less than this share of the control's count as the same: runs of one program differ that much.
    pub tolerance: f64,
    /// Whether names that differ in template arguments, argument lists or addresses only are one name.
    pub similar_names: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { top: 15, tolerance: 0.05, similar_names: false }
    }
}

/// Two profiles compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// How they were compared.
    pub options: Options,
    /// Which ranks.
    pub scope: Scope,
    /// All of those ranks together.
    pub total: Comparison,
    /// Each rank that both have, if there are several.
    pub ranks: Vec<Comparison>,
}

/// Which ranks are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The ranks that both profiles have.
    CommonRanks(Vec<i64>),
    /// The profiles have no rank in common: all ranks of each, together.
    AllRanks {
        /// Those of the control.
        control: Vec<i64>,
        /// Those of the test.
        test: Vec<i64>,
    },
}

/// One rank, or several together, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The rank; none for several.
    pub rank: Option<i64>,
    /// Where the time went.
    pub breakdown: Vec<Measure>,
    /// Steps, by name without number.
    pub steps: Vec<StepChange>,
    /// Kernels, copies and fills.
    pub kernels: Changes,
    /// Operators of the host; an operator's time includes that of the operators within it.
    pub operators: Changes,
}

/// A time on both sides; of several ranks, the sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// `span`, `busy`, `idle`, `compute`, `non_compute`, `communication`, `memory`, `overlap` or `exposed_communication`.
    pub name: &'static str,
    /// In the control, ns.
    pub control_ns: i64,
    /// In the test, ns.
    pub test_ns: i64,
    /// Test − control, ns.
    pub diff_ns: i64,
    /// Share of the control's span, 0 to 1.
    pub control_share: f64,
    /// Share of the test's span, 0 to 1.
    pub test_share: f64,
}

/// Steps of one name on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepChange {
    /// Name without its number.
    pub name: String,
    /// Steps in the control.
    pub control_count: u64,
    /// Steps in the test.
    pub test_count: u64,
    /// Mean in the control, ns.
    pub control_mean_ns: f64,
    /// Mean in the test, ns.
    pub test_mean_ns: f64,
    /// Median in the control (of an even number the lower of the two in the middle), ns.
    pub control_median_ns: i64,
    /// Median in the test, ns.
    pub test_median_ns: i64,
    /// Mean of the test over that of the control.
    pub ratio: f64,
}

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// In the test only.
    Added,
    /// In the control only.
    Removed,
    /// In both, more often in the test.
    MoreOften,
    /// In both, less often in the test.
    LessOften,
    /// As often, and longer in the mean.
    Slower,
    /// As often, and shorter in the mean.
    Faster,
    /// As often, and as long within the tolerance.
    Same,
}

/// A table of names on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changes {
    /// Names with the largest difference of time, largest first.
    pub rows: Vec<Row>,
    /// All names by what became of them.
    pub kinds: Vec<ChangeCount>,
    /// Time in the control, ns.
    pub control_ns: i64,
    /// Time in the test, ns.
    pub test_ns: i64,
}

/// How many names changed in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangeCount {
    /// What became of them.
    pub change: Change,
    /// How many names.
    pub names: u64,
    /// Sum of their differences, ns.
    pub diff_ns: i64,
}

/// A name on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The name.
    pub name: String,
    /// What became of it.
    pub change: Change,
    /// Times it ran in the control.
    pub control_count: u64,
    /// Times it ran in the test.
    pub test_count: u64,
    /// Test − control.
    pub diff_count: i64,
    /// Sum of durations in the control, ns.
    pub control_ns: i64,
    /// Sum of durations in the test, ns.
    pub test_ns: i64,
    /// Test − control, ns.
    pub diff_ns: i64,
    /// Mean in the control, ns; none if it never ran.
    pub control_mean_ns: Option<f64>,
    /// Mean in the test, ns; none if it never ran.
    pub test_mean_ns: Option<f64>,
}

/// Compares two profiles: the ranks that both have, or all ranks of each if they have none in common.
pub fn diff(control: Side<'_>, test: Side<'_>, options: &Options) -> Diff {
    let ranks = |side: Side<'_>| side.analyses.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>();
    let (of_control, of_test) = (ranks(control), ranks(test));
    let common: Vec<i64> = of_control.iter().copied().filter(|rank| of_test.contains(rank)).collect();
    let of_one = |rank: i64| compare(control, test, &[rank], &[rank], options);
    if common.is_empty() {
        let total = compare(control, test, &of_control, &of_test, options);
        return Diff {
            options: *options,
            scope: Scope::AllRanks { control: of_control, test: of_test },
            total,
            ranks: Vec::new(),
        };
    }
    let total = compare(control, test, &common, &common, options);
    let ranks = if common.len() > 1 { common.iter().map(|&rank| of_one(rank)).collect() } else { Vec::new() };
    Diff { options: *options, scope: Scope::CommonRanks(common), total, ranks }
}

fn compare(control: Side<'_>, test: Side<'_>, of_control: &[i64], of_test: &[i64], options: &Options) -> Comparison {
    let rank = (of_control == of_test).then_some(of_control).and_then(|ranks| match ranks {
        [rank] => Some(*rank),
        _ => None,
    });
    let table = |names: fn(Side<'_>, &[i64], &mut Names<'_>)| {
        let mut of_both = Sums::new();
        for (at, (side, ranks)) in [(control, of_control), (test, of_test)].into_iter().enumerate() {
            names(side, ranks, &mut Names { rows: &mut of_both, side: at, similar: options.similar_names });
        }
        changes(of_both, options)
    };
    Comparison {
        rank,
        breakdown: breakdown(control, test, of_control, of_test),
        steps: steps(control, test, of_control, of_test),
        kernels: table(kernels),
        operators: table(operators),
    }
}

fn analyses<'a>(side: Side<'a>, ranks: &'a [i64]) -> impl Iterator<Item = &'a RankAnalyses> {
    side.analyses.ranks.iter().filter(|of| ranks.contains(&of.rank))
}

fn breakdown(control: Side<'_>, test: Side<'_>, of_control: &[i64], of_test: &[i64]) -> Vec<Measure> {
    const NAMES: [&str; 9] = [
        "span",
        "busy",
        "idle",
        "compute",
        "non_compute",
        "communication",
        "memory",
        "overlap",
        "exposed_communication",
    ];
    let sums = |side, ranks| {
        analyses(side, ranks).fold([0i64; 9], |mut sums, of| {
            let (time, exposed) = (&of.temporal, of.overlap.exposed_ns);
            let of_rank = [
                time.span_ns,
                time.busy_ns,
                time.idle_ns,
                time.compute_ns,
                time.non_compute_ns,
                time.communication_ns,
                time.memory_ns,
                time.overlap_ns,
                exposed,
            ];
            sums.iter_mut().zip(of_rank).for_each(|(sum, ns)| *sum = sum.saturating_add(ns));
            sums
        })
    };
    let (control, test) = (sums(control, of_control), sums(test, of_test));
    let measure = |at: usize| Measure {
        name: NAMES[at],
        control_ns: control[at],
        test_ns: test[at],
        diff_ns: test[at].saturating_sub(control[at]),
        control_share: share(control[at], control[0]),
        test_share: share(test[at], test[0]),
    };
    (0..NAMES.len()).map(measure).collect()
}

fn share(part: i64, whole: i64) -> f64 {
    if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
}

fn steps(control: Side<'_>, test: Side<'_>, of_control: &[i64], of_test: &[i64]) -> Vec<StepChange> {
    let mut durations: BTreeMap<&str, [Vec<i64>; 2]> = BTreeMap::new();
    for (at, (side, ranks)) in [(control, of_control), (test, of_test)].into_iter().enumerate() {
        for steps in analyses(side, ranks).flat_map(|of| &of.steps).filter(|steps| steps.on == "host") {
            let of_name = durations.entry(&steps.name).or_default();
            of_name[at].extend(steps.instances.iter().map(|step| step.dur));
        }
    }
    let change = |(name, [mut control, mut test]): (&str, [Vec<i64>; 2])| {
        let mean = |of: &[i64]| of.iter().map(|&ns| ns as f64).sum::<f64>() / of.len() as f64;
        let (control_mean_ns, test_mean_ns) = (mean(&control), mean(&test));
        let median = |of: &mut Vec<i64>| {
            let middle = (of.len() - 1) / 2;
            *of.select_nth_unstable(middle).1
        };
        StepChange {
            name: name.to_owned(),
            control_count: control.len() as u64,
            test_count: test.len() as u64,
            control_mean_ns,
            test_mean_ns,
            control_median_ns: median(&mut control),
            test_median_ns: median(&mut test),
            ratio: if control_mean_ns > 0.0 { test_mean_ns / control_mean_ns } else { 0.0 },
        }
    };
    let in_both = durations.into_iter().filter(|(_, sides)| sides.iter().all(|side| !side.is_empty()));
    in_both.map(change).collect()
}

/// Counts and sums by name, of the control and the test.
type Sums = BTreeMap<String, [(u64, i64); 2]>;

/// Where one side's names go.
struct Names<'s> {
    rows: &'s mut Sums,
    side: usize,
    similar: bool,
}

impl Names<'_> {
    fn add(&mut self, name: &str, count: u64, ns: i64) {
        let name = if self.similar { similar(name) } else { name.to_owned() };
        let sum = &mut self.rows.entry(name).or_default()[self.side];
        *sum = (sum.0 + count, sum.1.saturating_add(ns));
    }
}

fn kernels(side: Side<'_>, ranks: &[i64], names: &mut Names<'_>) {
    for kernel in analyses(side, ranks).flat_map(|of| &of.kernels.rows) {
        names.add(&kernel.name, kernel.durations.count, kernel.durations.sum_ns);
    }
}

fn operators(side: Side<'_>, ranks: &[i64], names: &mut Names<'_>) {
    let mut sums: FxHashMap<u32, (u64, i64)> = FxHashMap::default();
    for rank in side.run.ranks.iter().filter(|rank| ranks.contains(&rank.info.rank)) {
        let reliable = |flag| matches!(flag, Flag::None | Flag::Unfinished);
        let wanted = |kind| matches!(kind, HostKind::Operator | HostKind::Span);
        for event in rank.host.iter().filter(|event| wanted(event.kind) && reliable(event.flag)) {
            let sum = sums.entry(event.name).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(event.dur));
        }
    }
    for (name, (count, ns)) in sums {
        names.add(side.run.text(name), count, ns);
    }
}

fn changes(sums: Sums, options: &Options) -> Changes {
    let mut rows: Vec<Row> = sums.into_iter().map(|(name, sides)| row(name, sides, options.tolerance)).collect();
    rows.sort_by(|a, b| b.diff_ns.unsigned_abs().cmp(&a.diff_ns.unsigned_abs()).then_with(|| a.name.cmp(&b.name)));
    let mut kinds: BTreeMap<Change, (u64, i64)> = BTreeMap::new();
    for row in &rows {
        let kind = kinds.entry(row.change).or_default();
        *kind = (kind.0 + 1, kind.1.saturating_add(row.diff_ns));
    }
    let sum = |of: fn(&Row) -> i64| rows.iter().map(of).fold(0, i64::saturating_add);
    let (control_ns, test_ns) = (sum(|row| row.control_ns), sum(|row| row.test_ns));
    rows.truncate(options.top);
    let count = |(change, (names, diff_ns))| ChangeCount { change, names, diff_ns };
    Changes { rows, kinds: kinds.into_iter().map(count).collect(), control_ns, test_ns }
}

fn row(name: String, [control, test]: [(u64, i64); 2], tolerance: f64) -> Row {
    let mean = |(count, ns): (u64, i64)| (count > 0).then(|| ns as f64 / count as f64);
    let (control_mean_ns, test_mean_ns) = (mean(control), mean(test));
    let change = match (control_mean_ns, test_mean_ns) {
        (None, _) => Change::Added,
        (_, None) => Change::Removed,
        _ if test.0 > control.0 => Change::MoreOften,
        _ if test.0 < control.0 => Change::LessOften,
        (Some(before), Some(after)) if (after - before).abs() <= tolerance * before => Change::Same,
        (before, after) if after > before => Change::Slower,
        _ => Change::Faster,
    };
    Row {
        name,
        change,
        control_count: control.0,
        test_count: test.0,
        diff_count: test.0 as i64 - control.0 as i64,
        control_ns: control.1,
        test_ns: test.1,
        diff_ns: test.1 - control.1,
        control_mean_ns,
        test_mean_ns,
    }
}

/// A name without what distinguishes instances of one function: template arguments, argument lists, addresses.
pub fn similar(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    // Brackets that are open.
    let mut open: Vec<char> = Vec::new();
    let mut rest = name;
    while let Some(character) = rest.chars().next() {
        match (character, open.last()) {
            ('<' | '(', _) => open.push(character),
            ('>', Some('<')) | (')', Some('(')) => {
                open.pop();
                if open.is_empty() {
                    short.push_str(if character == '>' { "<…>" } else { "(…)" });
                }
            }
            (_, Some(_)) => {}
            ('0', None) if rest.starts_with("0x") => {
                short.push_str("0x…");
                rest = rest[2..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
                continue;
            }
            (_, None) => short.push(character),
        }
        rest = &rest[character.len_utf8()..];
    }
    // Brackets that do not close (a cut name, `operator<`): the name as it is.
    if open.is_empty() { short } else { name.to_owned() }
}

#[cfg(test)]
mod tests;
