//! The kernel table: one row per name.

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::Texts;

use super::stats::{Distribution, share};
use super::work::{Kind, NO_CALL, Rank};

/// What is known of all runs of one kernel (or kind of copy).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kernel {
    /// Name.
    pub name: String,
    /// `compute`, `communication` or `memory`.
    pub class: &'static str,
    /// Durations of its runs.
    pub durations: Distribution,
    /// Launch calls on the host that started them; a graph's launch counts once, 0 where the source has none.
    pub launches: u64,
    /// Sum of its durations over the span, 0 to 1; above 1 where streams overlap.
    pub share_of_span: f64,
    /// Sum of its durations over that of all rows, 0 to 1.
    pub share_of_time: f64,
    /// Its runs over those of all rows, 0 to 1.
    pub share_of_runs: f64,
}

/// The kernel table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KernelTable {
    /// All rows, longest sum first.
    pub rows: Vec<Kernel>,
    /// The longest sums, and the rest as one.
    pub by_time: Vec<Part>,
    /// The most runs, and the rest as one.
    pub by_runs: Vec<Part>,
}

/// A part of a whole, as a pie or bar shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Name; none for the rest.
    pub name: Option<String>,
    /// Names in it: 1, or as many as the rest has.
    pub names: u64,
    /// Sum of durations, ns.
    pub sum_ns: i64,
    /// Runs.
    pub runs: u64,
    /// Share of the whole (of time or of runs), 0 to 1.
    pub share: f64,
    /// Share of the span, 0 to 1; above 1 where streams overlap.
    pub share_of_span: f64,
}

/// The durations of one name's runs.
struct Runs {
    durations: Vec<i64>,
    launches: u64,
}

/// The rows of some ranks, before they become a table.
pub(super) struct KernelRuns {
    runs: FxHashMap<(u32, Kind), Runs>,
    span_ns: i64,
}

impl KernelRuns {
    /// The runs of one rank whose work spans this time.
    pub(super) fn of(rank: &Rank<'_>, span_ns: i64) -> Self {
        // Places of (name, kind) in the order in which they came; names are small numbers.
        let mut places = vec![u32::MAX; rank.run.texts.len() * Kind::ALL.len()];
        let mut keys: Vec<(u32, Kind)> = Vec::new();
        let mut counts: Vec<usize> = Vec::new();
        let place_of = |name: u32, kind: Kind| name as usize * Kind::ALL.len() + kind as usize;
        // What HTA has no class for is in none of its tables.
        let counted = || rank.work.iter().filter(|work| work.kind != Kind::Other);
        for work in counted() {
            let place = &mut places[place_of(work.name, work.kind)];
            if *place == u32::MAX {
                *place = keys.len() as u32;
                keys.push((work.name, work.kind));
                counts.push(0);
            }
            counts[*place as usize] += 1;
        }
        let mut runs: Vec<(Runs, Vec<u32>)> = counts
            .into_iter()
            .map(|count| (Runs { durations: Vec::with_capacity(count), launches: 0 }, Vec::with_capacity(count)))
            .collect();
        for work in counted() {
            let (runs, calls) = &mut runs[places[place_of(work.name, work.kind)] as usize];
            runs.durations.push(work.dur);
            if work.call != NO_CALL {
                calls.push(work.call);
            }
        }
        let distinct = |(mut runs, mut calls): (Runs, Vec<u32>)| {
            calls.sort_unstable();
            calls.dedup();
            runs.launches = calls.len() as u64;
            runs
        };
        Self { runs: keys.into_iter().zip(runs.into_iter().map(distinct)).collect(), span_ns }
    }

    /// Adds another rank's runs.
    pub(super) fn add(&mut self, other: KernelRuns) {
        self.span_ns = self.span_ns.saturating_add(other.span_ns);
        for (key, mut runs) in other.runs {
            let entry = self.runs.entry(key).or_insert(Runs { durations: Vec::new(), launches: 0 });
            entry.durations.append(&mut runs.durations);
            entry.launches += runs.launches;
        }
    }

    /// The table, with `top` names in its top lists. Leaves all durations sorted.
    pub(super) fn table(&mut self, texts: &Texts, top: usize) -> KernelTable {
        let mut rows: Vec<Kernel> = self
            .runs
            .iter_mut()
            .map(|((name, kind), runs)| Kernel {
                name: texts.get(*name).to_owned(),
                class: kind.word(),
                durations: Distribution::of(&mut runs.durations),
                launches: runs.launches,
                share_of_span: 0.0,
                share_of_time: 0.0,
                share_of_runs: 0.0,
            })
            .collect();
        let time: i128 = rows.iter().map(|row| i128::from(row.durations.sum_ns)).sum();
        let count: u64 = rows.iter().map(|row| row.durations.count).sum();
        for row in &mut rows {
            row.share_of_span = share(row.durations.sum_ns, self.span_ns);
            row.share_of_time = share(row.durations.sum_ns, time);
            row.share_of_runs = share(row.durations.count, count);
        }
        rows.sort_by(|a, b| {
            let key = |row: &Kernel| (row.durations.sum_ns, row.durations.count);
            key(b).cmp(&key(a)).then_with(|| (&a.name, a.class).cmp(&(&b.name, b.class)))
        });
        let by_time = parts(rows.iter(), top, |part| share(part.sum_ns, time), self.span_ns);
        let mut by_count: Vec<&Kernel> = rows.iter().collect();
        by_count.sort_by_key(|row| std::cmp::Reverse(row.durations.count));
        let by_runs = parts(by_count.into_iter(), top, |part| share(part.runs, count), self.span_ns);
        KernelTable { rows, by_time, by_runs }
    }
}

/// The first `top` rows, and the rest as one part.
fn parts<'k>(
    rows: impl ExactSizeIterator<Item = &'k Kernel>,
    top: usize,
    share_of: impl Fn(&Part) -> f64,
    span_ns: i64,
) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    // One name too many is named rather than called the rest.
    let named = if rows.len() == top + 1 { rows.len() } else { top };
    for (at, row) in rows.enumerate() {
        if at > named {
            let rest = &mut parts[named];
            rest.names += 1;
            rest.sum_ns = rest.sum_ns.saturating_add(row.durations.sum_ns);
            rest.runs += row.durations.count;
        } else {
            let name = (at < named).then(|| row.name.clone());
            let (sum_ns, runs) = (row.durations.sum_ns, row.durations.count);
            parts.push(Part { name, names: 1, sum_ns, runs, share: 0.0, share_of_span: 0.0 });
        }
    }
    for part in &mut parts {
        part.share = share_of(part);
        part.share_of_span = share(part.sum_ns, span_ns);
    }
    parts
}
