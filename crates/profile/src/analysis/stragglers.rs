//! Ranks that make others wait.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::annotations::collapse;
use super::stats::Distribution;
use super::work::{Kind, Rank, Work};

/// Which ranks make others wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stragglers {
    /// How they were found: `group and sequence` or `order` (starts of collectives that match by these, on the common clock),
    /// `late start` (HTA's measure, where none match), or none: one rank, or no collectives.
    pub method: Option<&'static str>,
    /// Collectives matched over all ranks that take part.
    pub collectives: u64,
    /// All ranks, by rank.
    pub ranks: Vec<Straggler>,
    /// Time lost by all ranks together in waiting for the last to come, ns.
    pub waited_ns: i64,
}

/// What a rank makes others wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Straggler {
    /// The rank.
    pub rank: i64,
    /// How long after the first rank it started each matched collective.
    pub lateness: Distribution,
    /// Collectives that it started last.
    pub last: u64,
    /// Time that it waited for the last to come, ns.
    pub waited_ns: i64,
    /// Time that others waited for it, ns: where it came last, the sum of what they waited after the last but one had come.
    pub made_others_wait_ns: i64,
    /// Start of HTA's most telling collective, in mean iterations since the first event; none where HTA finds none.
    pub late_start: Option<f64>,
    /// Whether it counts as a straggler.
    pub straggler: bool,
}

/// HTA's: collectives shorter than this part of a step tell nothing.
const LEAST_SHARE_OF_STEP: f64 = 0.01;
/// HTA's: so many ranks count as stragglers in each step.
const HTA_CANDIDATES: usize = 2;
/// A rank is a straggler when others waited for it for more than this part of the span; less is noise of clocks and network.
const LEAST_SHARE_OF_SPAN: f64 = 0.01;

/// Ranks that make others wait.
pub(super) fn stragglers(ranks: &[Rank<'_>]) -> Stragglers {
    if ranks.len() < 2 {
        return Stragglers::default();
    }
    let of = |rank: &Rank<'_>| Straggler { rank: rank.events.info.rank, ..Straggler::default() };
    let mut result = Stragglers { ranks: ranks.iter().map(of).collect(), ..Stragglers::default() };
    if !ranks.iter().any(|rank| rank.options.hta_compat) {
        let (method, starts) = matched(ranks);
        if !starts.is_empty() {
            result.method = Some(method);
            wait_for_the_last(ranks, &starts, &mut result);
            return result;
        }
    }
    if let Some(late) = late_start(ranks) {
        for (at, start) in &late.starts {
            result.ranks[*at].late_start = Some(*start);
        }
        result.method = Some("late start");
        for at in late.stragglers {
            result.ranks[at].straggler = true;
        }
    }
    result
}

/// Starts of one collective on the common clock, each with the place of its rank.
type Starts = Vec<(usize, i64)>;

/// Collectives that at least two ranks take part in: by process group and number where stated; else the nth of a name, where
/// all ranks that have the name have it equally often.
fn matched(ranks: &[Rank<'_>]) -> (&'static str, Vec<Starts>) {
    let mut identified: FxHashMap<(u32, i64), Starts> = FxHashMap::default();
    let mut named: FxHashMap<u32, Vec<Starts>> = FxHashMap::default();
    for (at, rank) in ranks.iter().enumerate() {
        let offset = rank.events.info.offset_ns;
        let mut of_rank: FxHashMap<u32, Vec<i64>> = FxHashMap::default();
        for work in rank.work.iter().filter(|work| work.kind == Kind::Communication) {
            let event = &rank.events.device[work.event as usize];
            let start = work.ts.saturating_add(offset);
            if let (Some(group), Some(sequence)) = (event.group, event.sequence) {
                identified.entry((group, sequence)).or_default().push((at, start));
            }
            of_rank.entry(work.name).or_default().push(start);
        }
        for (name, mut starts) in of_rank {
            starts.sort_unstable();
            named.entry(name).or_default().push(starts.into_iter().map(|start| (at, start)).collect());
        }
    }
    // A collective may be several kernels: the first counts.
    let first = |mut starts: Starts| {
        starts.sort_unstable();
        starts.dedup_by_key(|start| start.0);
        starts
    };
    let mut of_groups: Vec<Starts> = identified.into_values().map(first).filter(|starts| starts.len() > 1).collect();
    if !of_groups.is_empty() {
        of_groups.sort_unstable();
        return ("group and sequence", of_groups);
    }
    let mut of_names: Vec<Starts> = Vec::new();
    for ranks in named.into_values().filter(|ranks| ranks.len() > 1) {
        let count = ranks[0].len();
        if ranks.iter().all(|starts| starts.len() == count) {
            of_names.extend((0..count).map(|nth| ranks.iter().map(|starts| starts[nth]).collect::<Starts>()));
        }
    }
    of_names.sort_unstable();
    ("order", of_names)
}

fn wait_for_the_last(ranks: &[Rank<'_>], collectives: &[Starts], result: &mut Stragglers) {
    let mut lateness: Vec<Vec<i64>> = vec![Vec::new(); ranks.len()];
    for starts in collectives {
        let times = || starts.iter().map(|start| start.1);
        let (first, last) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
        // Of several that come last at once none is to blame alone: the first of them is named, and made nobody wait.
        let who = starts.iter().position(|start| start.1 == last).unwrap_or_default();
        let others = || starts.iter().enumerate().filter(|(place, _)| *place != who).map(|(_, start)| start.1);
        let before_last = others().max().unwrap_or(last);
        for (at, start) in starts {
            lateness[*at].push(start.saturating_sub(first));
            let waited = last.saturating_sub(*start);
            result.ranks[*at].waited_ns = result.ranks[*at].waited_ns.saturating_add(waited);
            result.waited_ns = result.waited_ns.saturating_add(waited);
        }
        let straggler = &mut result.ranks[starts[who].0];
        straggler.last += 1;
        let made_wait = last.saturating_sub(before_last).saturating_mul(starts.len() as i64 - 1);
        straggler.made_others_wait_ns = straggler.made_others_wait_ns.saturating_add(made_wait);
    }
    result.collectives = collectives.len() as u64;
    for ((straggler, rank), lateness) in result.ranks.iter_mut().zip(ranks).zip(&mut lateness) {
        straggler.lateness = Distribution::of(lateness);
        let first = rank.work.iter().map(|work| work.ts).min().unwrap_or_default();
        let last = rank.work.iter().map(Work::end).max().unwrap_or_default();
        let per_other = straggler.made_others_wait_ns as f64 / (ranks.len() - 1) as f64;
        straggler.straggler = per_other > LEAST_SHARE_OF_SPAN * last.saturating_sub(first) as f64;
    }
}

/// What HTA's `find_stragglers_with_late_start_comm_kernels` finds.
struct LateStart {
    /// Places of the ranks with the mean of their normalised starts.
    starts: Vec<(usize, f64)>,
    /// Places of the stragglers.
    stragglers: Vec<usize>,
}

/// A long collective within a step.
struct Long {
    rank: usize,
    stream: i64,
    step: i64,
    name: u32,
    ts: i64,
    dur: i64,
}

fn late_start(ranks: &[Rank<'_>]) -> Option<LateStart> {
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    let mut numbers: Vec<i64> = Vec::new();
    let mut long: Vec<Long> = Vec::new();
    for (at, rank) in ranks.iter().enumerate() {
        // HTA shifts all ranks by the same time, so it knows no offsets.
        let offset = if rank.options.hta_compat { 0 } else { rank.events.info.offset_ns };
        let steps = steps(rank);
        numbers.extend(steps.iter().map(|step| step.2));
        // The latest end of this step and all before: nothing further back holds a time beyond it.
        let reach: Vec<i64> = steps
            .iter()
            .scan(i64::MIN, |reach, step| {
                *reach = step.1.max(*reach);
                Some(*reach)
            })
            .collect();
        let step_at = |ts: i64| {
            let before = steps.partition_point(|step| step.0 <= ts);
            let open = (0..before).rev().take_while(|at| ts < reach[*at]);
            open.map(|at| &steps[at]).find(|step| ts < step.1).map(|step| step.2)
        };
        let mut see = |ts: i64, dur: i64| {
            first = first.min(ts.saturating_add(offset));
            last = last.max(ts.saturating_add(offset).saturating_add(dur));
        };
        for event in rank.host.iter().filter(|event| step_at(event.ts).is_some()) {
            see(event.ts, event.dur);
        }
        let mut names: FxHashMap<u32, bool> = FxHashMap::default();
        for stream in rank.streams.iter().filter(|stream| stream.stream > 0) {
            for work in &rank.work[stream.range.clone()] {
                let Some(step) = rank.call(work).and_then(|call| step_at(call.ts)) else { continue };
                see(work.ts, work.dur);
                let is_hta_kernel = |name: u32| rank.run.text(name).starts_with("ncclKernel");
                let collective = if rank.options.hta_compat {
                    *names.entry(work.name).or_insert_with(|| is_hta_kernel(work.name))
                } else {
                    work.kind == Kind::Communication
                };
                if collective {
                    let (ts, dur) = (work.ts.saturating_add(offset), work.dur);
                    long.push(Long { rank: at, stream: stream.stream, step, name: work.name, ts, dur });
                }
            }
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.is_empty() || first > last {
        return None;
    }
    let step_ns = last.saturating_sub(first) as f64 / numbers.len() as f64;
    long.retain(|one| one.step > 0 && one.dur as f64 >= step_ns * LEAST_SHARE_OF_STEP);
    long.sort_by_key(|one| (one.stream, one.name, one.step, one.rank, one.ts));
    // The last of each rank in each step.
    let of_rank = |one: &Long| (one.stream, one.name, one.step, one.rank);
    let lasts: Vec<&Long> = long.chunk_by(|a, b| of_rank(a) == of_rank(b)).filter_map(|ones| ones.last()).collect();
    // The collective whose durations differ most between ranks, on average over the steps.
    let mut telling: Option<(f64, &[&Long])> = None;
    for ones in lasts.chunk_by(|a, b| (a.stream, a.name) == (b.stream, b.name)) {
        let spreads: Vec<f64> = ones
            .chunk_by(|a, b| a.step == b.step)
            .filter_map(|ones| {
                let mut durations: Vec<i64> = ones.iter().map(|one| one.dur).collect();
                Distribution::of(&mut durations).std_ns
            })
            .collect();
        let mean = spreads.iter().sum::<f64>() / spreads.len().max(1) as f64;
        if !spreads.is_empty() && telling.is_none_or(|(most, _)| mean > most) {
            telling = Some((mean, ones));
        }
    }
    let (_, telling) = telling?;
    let normalised = |one: &Long| one.ts.saturating_sub(first) as f64 / step_ns;
    let mut counts = vec![0u32; ranks.len()];
    for ones in telling.chunk_by(|a, b| a.step == b.step) {
        let mut sorted: Vec<i64> = ones.iter().map(|one| one.ts).collect();
        sorted.sort_unstable_by_key(|ts| std::cmp::Reverse(*ts));
        let threshold = sorted[HTA_CANDIDATES.min(sorted.len()) - 1];
        for one in ones.iter().filter(|one| one.ts >= threshold) {
            counts[one.rank] += 1;
        }
    }
    let mut starts: Vec<(usize, f64)> = Vec::new();
    for at in 0..ranks.len() {
        let of_rank: Vec<f64> = telling.iter().filter(|one| one.rank == at).map(|one| normalised(one)).collect();
        if !of_rank.is_empty() {
            starts.push((at, of_rank.iter().sum::<f64>() / of_rank.len() as f64));
        }
    }
    let mut order: Vec<usize> = (0..ranks.len()).filter(|at| counts[*at] > 0).collect();
    order.sort_by_key(|at| std::cmp::Reverse(counts[*at]));
    order.truncate(HTA_CANDIDATES);
    Some(LateStart { starts, stragglers: order })
}

/// A rank's steps: start, end and number.
fn steps(rank: &Rank<'_>) -> Vec<(i64, i64, i64)> {
    let mut names: Vec<Option<Option<i64>>> = vec![None; rank.run.texts.len()];
    let mut steps: Vec<(i64, i64, i64)> = Vec::new();
    for event in rank.host.iter() {
        let number = *names[event.name as usize].get_or_insert_with(|| {
            let (base, number) = collapse(rank.run.text(event.name));
            number.filter(|_| base == "ProfilerStep" || (!rank.options.hta_compat && base == "step"))
        });
        if let Some(number) = number {
            steps.push((event.ts, event.end(), number));
        }
    }
    steps.sort_unstable();
    steps
}
