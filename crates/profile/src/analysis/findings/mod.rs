//! Findings: what takes time that need not be taken, in plain words.
//!
//! Each rule measures time at stake, ns of a device or a rank. It speaks only where that is a material share of the span (the
//! thresholds are constants beside each rule), names the numbers, and says what to try. At most [`MOST`] sentences are given, those
//! with the most time at stake first; only a warning that the numbers themselves are unreliable comes before all others.
//!
//! Every ns that a device is idle counts for one rule at most. Other rules may look at the same time from another
//! side: a late rank makes others wait in communication that is exposed for it.

mod devices;
mod idle;
mod ranks;
mod words;

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{Error, Profile};

use super::Analyses;
use super::critical_path::{Bound, CriticalPath};
use super::work::{Rank, is_bounded, trusted};
use crate::Run;
use words::{capital, percent, time};

/// More sentences than this are not read.
pub const MOST: usize = 7;
/// An average over steps says nothing of each of them where one place alone takes this many times as much.
const MOST_OF_MEAN: f64 = 1.5;
/// Times that differ by less than this share of the longer one are taken for the same time.
const SAME_TIME: f64 = 0.2;

/// A sentence on what takes time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The rule that found it.
    pub rule: &'static str,
    /// What is wrong, how much, and what to try.
    pub text: String,
    /// Time at stake on all devices (or ranks) concerned, ns; 0 for a warning.
    pub ns: i64,
    /// Its share of the span of all devices (or ranks) of the profile, 0 to 1.
    pub share: f64,
    /// Ranks concerned, the worst first.
    pub ranks: Vec<i64>,
    /// Devices concerned, as rank and device number, the worst first; empty where it is about ranks as a whole.
    pub devices: Vec<(i64, i64)>,
    /// Where to look: the worst place.
    pub link: Option<Link>,
}

/// A place in the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The track.
    pub track: i64,
    /// From, ns on the clock of the track's rank.
    pub from_ns: i64,
    /// To, ns on the clock of the track's rank.
    pub to_ns: i64,
}

/// Time at stake on one device or rank.
#[derive(Clone, Debug)]
struct Hit {
    rank: i64,
    /// None where it is about the rank as a whole.
    device: Option<i64>,
    ns: i64,
    span_ns: i64,
    link: Option<Link>,
}

impl Hit {
    fn share(&self) -> f64 {
        if self.span_ns > 0 { self.ns as f64 / self.span_ns as f64 } else { 0.0 }
    }
}

/// What all rules look at.
struct Facts<'a> {
    run: &'a Run,
    analyses: &'a Analyses,
    critical: &'a [CriticalPath],
    /// The work of each rank, exact.
    works: &'a [Rank<'a>],
    /// Devices of the profile that work, and the sum of their spans, ns.
    devices: usize,
    devices_span_ns: i64,
    /// Ranks with such devices, and the sum of their spans, ns.
    ranks: usize,
    ranks_span_ns: i64,
    /// The steps of each rank.
    steps: FxHashMap<i64, StepTimes>,
}

/// The steps of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct StepTimes {
    /// The time they all take, ns.
    all_ns: i64,
    /// The mean duration of those that are whole, ns.
    mean_ns: f64,
}

impl StepTimes {
    /// A step shorter than this share of the median is no step of the same kind: one that was begun only.
    const LEAST: f64 = 0.1;
    /// A step that ends with the record, and is shorter than this share of the median, was cut off there.
    const LEAST_LAST: f64 = 0.9;

    /// Of these steps; `last` is the end of the rank's record. None without any.
    fn of(steps: &super::Steps, last: i64) -> Option<Self> {
        let median = steps.durations.median_ns;
        let is_whole = |step: &&super::Step| {
            let cut = step.ts.saturating_add(step.dur) >= last && (step.dur as f64) < Self::LEAST_LAST * median;
            !cut && step.dur as f64 >= Self::LEAST * median
        };
        let whole: Vec<&super::Step> = steps.instances.iter().filter(is_whole).collect();
        let whole_ns: i128 = whole.iter().map(|step| i128::from(step.dur)).sum();
        let mean_ns = whole_ns as f64 / whole.len() as f64;
        (!whole.is_empty()).then_some(Self { all_ns: steps.durations.sum_ns, mean_ns })
    }
}

/// What takes time that need not be taken: at most [`MOST`] sentences, the most time at stake first. `run` needs the host's slices;
/// `critical` may have the critical path of any of its ranks.
pub fn findings(
    run: &Run,
    profile: &Profile,
    analyses: &Analyses,
    critical: &[CriticalPath],
) -> Result<Vec<Finding>, Error> {
    // Exact, also where the analyses reproduce HTA.
    let options = super::Options { hta_compat: false, ..analyses.options.clone() };
    let works: Vec<Rank<'_>> = run.ranks.iter().map(|events| Rank::new(run, events, &options)).collect();
    let spans = || analyses.ranks.iter().map(|rank| rank.temporal.span_ns).filter(|&span| span > 0);
    let devices = || analyses.ranks.iter().flat_map(|rank| &rank.devices).filter(|device| device.temporal.span_ns > 0);
    let steps = |rank: &super::RankAnalyses| {
        let steps = rank.steps.iter().filter(|steps| steps.on == "host" && steps.name.to_lowercase().ends_with("step"));
        let most = steps.max_by_key(|steps| steps.durations.sum_ns)?;
        let events = &run.ranks.iter().find(|events| events.info.rank == rank.rank)?.host;
        let ends = events.iter().filter(|event| trusted(event.flag) && is_bounded(event.ts, event.dur));
        let last = ends.map(|event| event.end()).max()?;
        Some((rank.rank, StepTimes::of(most, last)?))
    };
    let facts = Facts {
        run,
        analyses,
        critical,
        works: &works,
        devices: devices().count(),
        devices_span_ns: sum(devices().map(|device| device.temporal.span_ns)),
        ranks: spans().count(),
        ranks_span_ns: sum(spans()),
        steps: analyses.ranks.iter().filter_map(steps).collect(),
    };
    let mut found = idle::find(&facts);
    found.extend(devices::find(&facts));
    found.extend(ranks::find(&facts));
    found.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.rule.cmp(b.rule)));
    tell_overlap(&mut found);
    let mut sentences: Vec<Finding> = ranks::unreliable(&facts, profile)?.into_iter().collect();
    sentences.extend(found);
    sentences.truncate(MOST);
    Ok(sentences)
}

/// Ranks that come late make others wait in communication that nothing hides: where that is most of it, the second of the two
/// sentences says that it is no more time.
fn tell_overlap(found: &mut [Finding]) {
    let place = |rule: &str| found.iter().position(|finding| finding.rule == rule);
    let (Some(late), Some(exposed)) = (place("stragglers"), place("exposed_communication")) else { return };
    let (one, other) = (found[late].ns, found[exposed].ns);
    if one.abs_diff(other) as f64 > SAME_TIME * one.max(other) as f64 {
        return;
    }
    let above = if late > exposed { "the communication above" } else { "the waiting above" };
    found[late.max(exposed)].text.push_str(&format!(" This is part of {above}, not more time."));
}

impl Facts<'_> {
    /// A finding about those hits that are material, in which `text` says what is the matter with the worst of them. None if none
    /// is.
    fn finding(
        &self,
        rule: &'static str,
        least_share: f64,
        hits: impl IntoIterator<Item = Hit>,
        text: impl FnOnce(&Hit, usize) -> String,
    ) -> Option<Finding> {
        let mut hits: Vec<Hit> = hits.into_iter().filter(|hit| hit.ns > 0 && hit.share() >= least_share).collect();
        hits.sort_by(|a, b| b.share().total_cmp(&a.share()).then_with(|| (a.rank, a.device).cmp(&(b.rank, b.device))));
        let worst = hits.first()?;
        let whole = if worst.device.is_some() { self.devices_span_ns } else { self.ranks_span_ns };
        let ns = sum(hits.iter().map(|hit| hit.ns));
        let mut ranks: Vec<i64> = hits.iter().map(|hit| hit.rank).collect();
        let mut seen = rustc_hash::FxHashSet::default();
        ranks.retain(|rank| seen.insert(*rank));
        Some(Finding {
            rule,
            text: text(worst, hits.len()),
            ns,
            share: if whole > 0 { (ns as f64 / whole as f64).min(1.0) } else { 0.0 },
            ranks,
            devices: hits.iter().filter_map(|hit| Some((hit.rank, hit.device?))).collect(),
            link: worst.link,
        })
    }

    /// Who, at the start of a sentence about the worst of so many: `GPU 0`, `GPU 0 of rank 3`, `3 of 8 GPUs (most: rank 5)`, `Rank 3`.
    fn who(&self, worst: &Hit, count: usize) -> String {
        let (noun, all) = match worst.device {
            Some(_) => (self.noun(worst.rank), self.devices),
            None => ("rank", self.ranks),
        };
        let which = match worst.device {
            Some(device) if self.ranks == 1 => format!("{noun} {device}"),
            Some(device) if count == 1 => format!("{noun} {device} of rank {}", worst.rank),
            _ => format!("rank {}", worst.rank),
        };
        match count {
            1 => capital(&which),
            2 if all == 2 => format!("Both {noun}s (most: {which})"),
            _ if count == all => format!("All {all} {noun}s (most: {which})"),
            _ => format!("{count} of {all} {noun}s (most: {which})"),
        }
    }

    /// What the devices of a rank are called.
    fn noun(&self, rank: i64) -> &'static str {
        let mut models = self.run.devices.iter().filter(|device| device.rank == rank);
        let is_gpu =
            |name: &str| !["cpu", "mtia", "artemis", "tpu"].iter().any(|word| name.to_lowercase().contains(word));
        let mtia = self.works.iter().filter(|work| work.events.info.rank == rank).flat_map(|work| &work.work);
        let other = mtia.take(1).any(|work| work.device_kind == crate::DeviceKind::Other);
        if models.all(|device| is_gpu(&device.name)) && !other { "GPU" } else { "device" }
    }

    /// How much, of the worst of so many: `18 % of each step (13.7 ms on average)`; or `up to 18 % of the time (84.2 ms of 465 ms)`
    /// where steps do not cover the time, or where a single place takes far longer than the average of a step: then it is
    /// not in each.
    fn amount(&self, worst: &Hit, count: usize) -> String {
        let up_to = if count > 1 { "up to " } else { "" };
        let longest = worst.link.map_or(0, |link| link.to_ns.saturating_sub(link.from_ns));
        let each = self.steps.get(&worst.rank).and_then(|steps| {
            let share = worst.ns as f64 / steps.all_ns as f64;
            let mean = share * steps.mean_ns;
            let covered = (0.7..1.3).contains(&(steps.all_ns as f64 / worst.span_ns as f64));
            (covered && share <= 1.0 && longest as f64 <= MOST_OF_MEAN * mean).then_some((share, mean))
        });
        match each {
            Some((share, mean)) => {
                format!("{up_to}{} of each step ({} on average)", percent(share), time(mean.round() as i64))
            }
            None => {
                let share = percent(worst.share());
                format!("{up_to}{share} of the time ({} of {})", time(worst.ns), time(worst.span_ns))
            }
        }
    }

    /// The share of the critical path of this rank that the host bounds, where that is known: not without launches on record, nor
    /// where the devices are busy for longer than the path, which then misses what they wait for.
    fn host_bound(&self, rank: i64) -> Option<f64> {
        let path = self.critical.iter().find(|path| path.rank == rank)?;
        let of = self.analyses.ranks.iter().find(|of| of.rank == rank)?;
        if path.launches == 0 || path.length_ns < of.temporal.busy_ns {
            return None;
        }
        let host = path.bounds.iter().filter(|part| matches!(part.bound, Bound::CpuBound | Bound::LaunchOverhead));
        Some(host.map(|part| part.share).sum())
    }
}

/// The sum; of times that no clock has, the largest number.
fn sum(times: impl Iterator<Item = i64>) -> i64 {
    times.fold(0, i64::saturating_add)
}

/// Picks the form of a verb: for one, for several.
fn verb(count: usize, one: &'static str, several: &'static str) -> &'static str {
    if count == 1 { one } else { several }
}

#[cfg(test)]
mod tests;
