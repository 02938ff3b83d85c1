//! Steps, and users' annotations.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::intervals::{Coverage, Interval};
use super::stats::{Distribution, Histogram};
use super::work::{Rank, trusted};
use crate::{DeviceKind, HostEvent, HostKind, RankEvents, Run};

/// Annotations of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Annotation {
    /// Name without its number (see [`collapse`]); where HTA is reproduced, as the source writes it.
    pub name: String,
    /// `host` or `device`.
    pub on: &'static str,
    /// Durations.
    pub durations: Distribution,
}

/// Steps of one collapsed name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// Name without its number: `ProfilerStep`, `step`.
    pub name: String,
    /// `host` or `device`.
    pub on: &'static str,
    /// Durations.
    pub durations: Distribution,
    /// Counts by duration.
    pub histogram: Histogram,
    /// Each step in order of start.
    pub instances: Vec<Step>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Its number, where the name has one.
    pub number: Option<i64>,
    /// Its track.
    pub track: i64,
    /// Start, ns on the rank's clock.
    pub ts: i64,
    /// Duration, ns.
    pub dur: i64,
    /// Time within it with work of any device, ns.
    pub device_busy_ns: i64,
}

/// A name without its number, for grouping: `step_12`, `step 12` and `step-12` become `step`, `ProfilerStep#12` becomes
/// `ProfilerStep`; and the number. A name that is only a number stays.
pub fn collapse(name: &str) -> (&str, Option<i64>) {
    let trimmed = name.trim_end();
    let stem = trimmed.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &trimmed[stem.len()..];
    let base = stem.trim_end_matches([' ', '_', '#', '-', '.', ':', '/']);
    if digits.is_empty() || base.is_empty() { (name, None) } else { (base, digits.parse().ok()) }
}

/// Whether annotations of this collapsed name are steps of a program: `ProfilerStep#12`, `step_12`, `train_step 12`, `step`.
fn is_step(base: &str, number: Option<i64>) -> bool {
    let lower = base.to_ascii_lowercase();
    lower.starts_with("step") || (number.is_some() && lower.ends_with("step"))
}

/// A user's annotation: its name, where it is, its track, start and duration.
struct Mark {
    name: u32,
    on: &'static str,
    track: i64,
    ts: i64,
    dur: i64,
}

fn on_host(event: &HostEvent) -> Mark {
    Mark { name: event.name, on: "host", track: event.track, ts: event.ts, dur: event.dur }
}

fn on_device(events: &RankEvents) -> impl Iterator<Item = Mark> {
    let marks = events.device.iter().filter(|event| event.kind == DeviceKind::Annotation && trusted(event.flag));
    marks.map(|event| Mark { name: event.name, on: "device", track: event.track, ts: event.ts, dur: event.dur })
}

/// All annotations of a rank by name, longest sum first; and its steps by collapsed name.
pub(super) fn annotations(rank: &Rank<'_>, busy: &[Interval]) -> (Vec<Annotation>, Vec<Steps>) {
    let run = rank.run;
    let mut names: FxHashMap<(&str, &'static str), Vec<i64>> = FxHashMap::default();
    let mut steps: FxHashMap<(&str, &'static str), Vec<Step>> = FxHashMap::default();
    let host = rank.threads.annotations.iter().map(|at| on_host(&rank.host[*at as usize]));
    let device = on_device(rank.events).map(|mark| {
        let (ts, dur) = rank.rounding.map_or((mark.ts, mark.dur), |rounding| rounding.apply(mark.ts, mark.dur));
        Mark { ts, dur, ..mark }
    });
    for mark in host.chain(device) {
        let Mark { ts, dur, .. } = mark;
        let text = run.text(mark.name);
        let (base, number) = collapse(text);
        let name = if rank.options.hta_compat { text } else { base };
        names.entry((name, mark.on)).or_default().push(dur);
        if is_step(base, number) {
            let step = Step { number, track: mark.track, ts, dur, device_busy_ns: 0 };
            steps.entry((base, mark.on)).or_default().push(step);
        }
    }
    let mut annotations: Vec<Annotation> = names
        .into_iter()
        .map(|((name, on), mut durations)| Annotation {
            name: name.to_owned(),
            on,
            durations: Distribution::of(&mut durations),
        })
        .collect();
    annotations.sort_by(|a, b| {
        b.durations.sum_ns.cmp(&a.durations.sum_ns).then_with(|| (&a.name, a.on).cmp(&(&b.name, b.on)))
    });
    let coverage = Coverage::new(busy);
    let finish = |((name, on), instances)| Steps::new(name, on, instances, rank.options.bins, Some(&coverage));
    let mut steps: Vec<Steps> = steps.into_iter().map(finish).collect();
    steps.sort_by(|a, b| (a.on == "device", &a.name).cmp(&(b.on == "device", &b.name)));
    (annotations, steps)
}

impl Steps {
    fn new(name: &str, on: &'static str, instances: Vec<Step>, bins: usize, busy: Option<&Coverage<'_>>) -> Self {
        let mut instances = instances;
        instances.sort_by_key(|step| (step.ts, step.number));
        for step in &mut instances {
            step.device_busy_ns = busy.map_or(0, |busy| busy.within(step.ts, step.ts.saturating_add(step.dur)));
        }
        let mut durations: Vec<i64> = instances.iter().map(|step| step.dur).collect();
        let distribution = Distribution::of(&mut durations);
        let histogram = Histogram::of(&durations, bins);
        Steps { name: name.to_owned(), on, durations: distribution, histogram, instances }
    }
}

/// The histogram of the annotations (or operators, or spans of our recorder) with this name, as the source writes it or collapsed: one for
/// the host and one for devices, where there are any; over all ranks, or one.
pub fn histogram(run: &Run, rank: Option<i64>, name: &str, bins: usize) -> Vec<Steps> {
    let mut found: [Vec<Step>; 2] = [Vec::new(), Vec::new()];
    let mut matches: Vec<Option<bool>> = vec![None; run.texts.len()];
    for events in run.ranks.iter().filter(|events| rank.is_none_or(|rank| rank == events.info.rank)) {
        let kinds = [HostKind::Annotation, HostKind::Span, HostKind::Operator];
        let host = events.host.iter().filter(|event| kinds.contains(&event.kind) && trusted(event.flag));
        for mark in host.map(on_host).chain(on_device(events)) {
            let text = run.text(mark.name);
            let wanted = matches[mark.name as usize].get_or_insert_with(|| text == name || collapse(text).0 == name);
            if *wanted {
                let number = collapse(text).1;
                let step = Step { number, track: mark.track, ts: mark.ts, dur: mark.dur, device_busy_ns: 0 };
                found[usize::from(mark.on == "device")].push(step);
            }
        }
    }
    let [host, device] = found;
    let both = [("host", host), ("device", device)].into_iter().filter(|(_, instances)| !instances.is_empty());
    both.map(|(on, instances)| Steps::new(name, on, instances, bins, None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_collapsed_names_except_those_of_hta() {
        let mut synthetic = crate::analysis::synthetic::Synthetic::new();
        synthetic.rank(0, &[1], &[]);
        for step in 0..3 {
            let name = format!("ProfilerStep#{step}");
            synthetic.push(&crate::analysis::synthetic::host("annotation", &name, 1, step * 100, 90));
        }
        let (run, profile, _dir) = synthetic.load();
        let rows = |hta_compat| {
            let options = crate::analysis::Options { hta_compat, ..Default::default() };
            let analyses = crate::analysis::analyse(&run, &profile, &options).unwrap();
            let rows = analyses.ranks[0].annotations.iter();
            rows.map(|row| (row.name.clone(), row.durations.count)).collect::<Vec<_>>()
        };
        assert_eq!(rows(false), [("ProfilerStep".to_owned(), 3)]);
        assert_eq!(rows(true), [0, 1, 2].map(|step| (format!("ProfilerStep#{step}"), 1)));
    }

    #[test]
    fn numbers_are_cut_off_names() {
        assert_eq!(collapse("step_12"), ("step", Some(12)));
        assert_eq!(collapse("ProfilerStep#12"), ("ProfilerStep", Some(12)));
        assert_eq!(collapse("ProfilerStep #12"), ("ProfilerStep", Some(12)));
        assert_eq!(collapse("step 12 "), ("step", Some(12)));
        assert_eq!(collapse("forward"), ("forward", None));
        assert_eq!(collapse("12"), ("12", None));
        assert_eq!(collapse("step_99999999999999999999"), ("step", None));
        assert!(is_step("ProfilerStep", Some(1)) && is_step("step", None) && is_step("train_step", Some(3)));
        assert!(!is_step("Optimizer.step#SGD.step", None) && !is_step("forward", Some(2)));
    }
}
