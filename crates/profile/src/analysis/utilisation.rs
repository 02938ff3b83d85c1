//! Utilisation over time, of devices, nodes and processors.

use serde::Serialize;
use trace::schema::Table;
use trace::{Error, Filter, Profile};

use super::intervals::{self, Coverage, Interval};
use super::stats::share;
use super::work::Rank;

/// Values over time in buckets of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// Start of the first bucket, ns: on the rank's clock; of a node, on the common clock.
    pub from_ns: i64,
    /// Width of a bucket, ns.
    pub bucket_ns: i64,
    /// One value for each bucket.
    pub values: Vec<f64>,
}

/// How busy a device was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceUtilisation {
    /// Rank.
    pub rank: i64,
    /// Device number.
    pub device: i64,
    /// Busy share of each bucket, 0 to 1.
    pub busy: Series,
    /// Mean of the whole span, 0 to 1.
    pub mean: f64,
    /// Share of the buckets with any work, 0 to 1: SageMaker Profiler's "active time".
    pub active: f64,
}

/// How busy the devices of a node were.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeUtilisation {
    /// Host name, where the sources say; else none, and all ranks without one are taken together.
    pub node: Option<String>,
    /// Ranks on it.
    pub ranks: Vec<i64>,
    /// Devices.
    pub devices: u64,
    /// Busy share of each bucket, mean of the devices, 0 to 1; on the common clock.
    pub busy: Series,
    /// Mean of the whole span, 0 to 1.
    pub mean: f64,
    /// Share of the buckets with any work, 0 to 1.
    pub active: f64,
}

/// How busy processors were.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CpuUtilisation {
    /// `counters`: the system's own, as recorded; `host slices`: threads with an operator, a call or a span; none without either.
    pub source: Option<&'static str>,
    /// Mean over all cores, 0 to 1 (counters), or the number of busy threads (host slices).
    pub busy: Series,
    /// Mean of the whole span.
    pub mean: f64,
    /// Share of the buckets with any work, 0 to 1.
    pub active: f64,
    /// One series for each core, where there are counters.
    pub cores: Vec<Core>,
}

/// How busy a core was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Core {
    /// Its name.
    pub name: String,
    /// Busy share of each bucket, 0 to 1.
    pub busy: Series,
}

/// The time that series of a rank cover: all work of its devices and all operators, calls and spans of its threads.
pub(super) fn window(rank: &Rank<'_>) -> Interval {
    let device = rank.work.iter().map(|work| (work.ts, work.end()));
    let host = rank.threads.busy.iter().filter_map(|busy| Some((busy.first()?.0, busy.last()?.1)));
    let all = device.chain(host);
    all.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0, 0))
}

impl Series {
    /// No value yet, over this window; the last bucket may reach beyond it.
    fn over(window: Interval, buckets: usize) -> Self {
        let length = window.1.saturating_sub(window.0);
        let bucket_ns = length.div_euclid(buckets.max(1) as i64).saturating_add(1);
        let count = if length == 0 { 0 } else { (length - 1) / bucket_ns + 1 };
        Series { from_ns: window.0, bucket_ns, values: vec![0.0; count as usize] }
    }

    /// Calls `see` with each bucket's part of the window: its value, start and end.
    fn each(&mut self, end: i64, mut see: impl FnMut(&mut f64, i64, i64)) {
        let mut from = self.from_ns;
        for value in &mut self.values {
            let to = from.saturating_add(self.bucket_ns).min(end);
            see(value, from, to);
            from = to;
        }
    }

    /// Adds the share of each bucket that is covered, times `weight`.
    fn add(&mut self, end: i64, coverage: &Coverage<'_>, weight: f64) {
        self.each(end, |value, from, to| *value += weight * share(coverage.within(from, to), to - from));
    }

    /// Share of the buckets above 0.
    fn active(&self) -> f64 {
        share(self.values.iter().filter(|value| **value > 0.0).count() as i64, self.values.len() as i64)
    }

    /// Mean over time, of a window that ends at `end`.
    fn mean(&self, end: i64) -> f64 {
        let mut sum = 0.0;
        let mut copy = self.clone();
        copy.each(end, |value, from, to| sum += *value * (to - from) as f64);
        if end > self.from_ns { sum / end.saturating_sub(self.from_ns) as f64 } else { 0.0 }
    }
}

/// The devices of a rank, busy over its window.
pub(super) fn devices(rank: &Rank<'_>, window: Interval) -> (Vec<DeviceUtilisation>, Vec<Vec<Interval>>) {
    let of = |(device, streams)| {
        let streams: Vec<&super::work::Stream> = streams;
        let busy = rank.union_of(streams.iter().copied(), |_| true);
        let mut series = Series::over(window, rank.options.buckets);
        series.add(window.1, &Coverage::new(&busy), 1.0);
        let utilisation = DeviceUtilisation {
            rank: rank.events.info.rank,
            device,
            mean: share(intervals::total(&busy), window.1 - window.0),
            active: series.active(),
            busy: series,
        };
        (utilisation, busy)
    };
    rank.devices().into_iter().map(of).unzip()
}

/// A rank on its node.
pub(super) struct OnNode<'r> {
    pub rank: i64,
    pub host: Option<&'r str>,
    pub offset_ns: i64,
    pub window: Interval,
    /// When each of its devices was busy.
    pub devices: Vec<Vec<Interval>>,
}

/// Nodes, by the names of their hosts, over the time of all ranks on the common clock.
pub(super) fn nodes(ranks: &[OnNode<'_>], buckets: usize) -> Vec<NodeUtilisation> {
    let shift = |at: i64, rank: &OnNode<'_>| at.saturating_add(rank.offset_ns);
    let windows = ranks.iter().filter(|rank| rank.window.0 < rank.window.1);
    let windows = windows.map(|rank| (shift(rank.window.0, rank), shift(rank.window.1, rank)));
    let window = windows.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0, 0));
    let mut hosts: Vec<Option<&str>> =
        ranks.iter().filter(|rank| !rank.devices.is_empty()).map(|rank| rank.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let of = |host: Option<&str>| {
        let here: Vec<&OnNode<'_>> = ranks.iter().filter(|rank| rank.host == host).collect();
        let devices = here.iter().map(|rank| rank.devices.len()).sum::<usize>();
        let mut busy = Series::over(window, buckets);
        for rank in &here {
            for device in &rank.devices {
                let shifted: Vec<Interval> =
                    device.iter().map(|(from, to)| (shift(*from, rank), shift(*to, rank))).collect();
                busy.add(window.1, &Coverage::new(&shifted), 1.0 / devices as f64);
            }
        }
        NodeUtilisation {
            node: host.map(str::to_owned),
            ranks: here.iter().map(|rank| rank.rank).collect(),
            devices: devices as u64,
            mean: busy.mean(window.1),
            active: busy.active(),
            busy,
        }
    };
    hosts.into_iter().map(of).collect()
}

/// The counter of our recorder with the busy share of each core since its last sample; also what others may call so.
fn is_cpu_counter(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.contains("cpu") && (lower.contains("util") || lower.contains("busy"))
}

/// How busy processors were: by the counters of the system where the profile has them, else by the host's slices.
pub(super) fn cpu(rank: &Rank<'_>, profile: &Profile, window: Interval) -> Result<CpuUtilisation, Error> {
    let cores = cores(rank, profile, window)?;
    let mut busy = Series::over(window, rank.options.buckets);
    let source = if cores.is_empty() {
        for thread in &rank.threads.busy {
            busy.add(window.1, &Coverage::new(thread), 1.0);
        }
        (!busy.values.is_empty() && busy.values.iter().any(|value| *value > 0.0)).then_some("host slices")
    } else {
        for core in &cores {
            for (sum, value) in busy.values.iter_mut().zip(&core.busy.values) {
                *sum += value / cores.len() as f64;
            }
        }
        Some("counters")
    };
    Ok(CpuUtilisation { source, mean: busy.mean(window.1), active: busy.active(), busy, cores })
}

/// The series of each core, where the profile has counters.
fn cores(rank: &Rank<'_>, profile: &Profile, window: Interval) -> Result<Vec<Core>, Error> {
    if profile.manifest().rows(Table::Counters) == 0 {
        return Ok(Vec::new());
    }
    let filter = Filter { rank: Some(rank.events.info.rank), ..Filter::default() };
    let rows = profile.read_where(Table::Counters, &["ts", "name", "series", "value", "unit"], filter)?;
    let (ts, names, series) = (rows.ints("ts"), rows.texts("name"), rows.texts("series"));
    let (values, units) = (rows.floats("value"), rows.texts("unit"));
    let mut samples: std::collections::BTreeMap<&str, Vec<(i64, f64)>> = std::collections::BTreeMap::new();
    for row in 0..rows.len() {
        let series = rows.text(series[row]);
        // The process's own series is no core, and the total of all cores is their mean.
        if !is_cpu_counter(rows.text(names[row]))
            || !values[row].is_finite()
            || !series.contains(|c: char| c.is_ascii_digit())
        {
            continue;
        }
        let scale = if rows.text(units[row]) == "%" { 0.01 } else { 1.0 };
        samples.entry(series).or_default().push((ts[row], values[row] * scale));
    }
    let of = |(name, mut samples): (&str, Vec<(i64, f64)>)| {
        samples.sort_by_key(|sample| sample.0);
        let mut busy = Series::over(window, rank.options.buckets);
        // A sample tells of the time since the one before; the last one's value goes on.
        busy.each(window.1, |value, from, to| {
            let mut sum = 0.0;
            let mut at = from;
            let first = samples.partition_point(|sample| sample.0 <= from);
            for (until, sample) in samples[first..].iter().chain(samples.last().map(|last| (i64::MAX, last.1)).as_ref())
            {
                let end = (*until).min(to);
                sum += sample * (end - at).max(0) as f64;
                at = at.max(end);
                if at >= to {
                    break;
                }
            }
            *value = if to > from { sum / (to - from) as f64 } else { 0.0 };
        });
        Core { name: name.to_owned(), busy }
    };
    let mut cores: Vec<Core> = samples.into_iter().map(of).collect();
    let number = |name: &str| name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap_or(u64::MAX);
    cores.sort_by_key(|core| number(&core.name));
    Ok(cores)
}
