//! Counters of the host, as our recorder samples them.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use trace::schema::Table;
use trace::{Error, Filter, NO_TEXT, Profile};

/// Names of the counters, in the order in which they are shown. The busy share of each core is utilisation, which has its own place.
const NAMES: [&str; 11] = [
    "memory_pool",
    "process_memory",
    "process_cpu_utilisation",
    "page_faults",
    "context_switches",
    "disk",
    "network",
    "cycles",
    "instructions",
    "llc_misses",
    "itlb_misses",
];
/// Series that are shown; a host may have hundreds of interfaces.
const MOST_SERIES: usize = 64;
/// Points of a series.
const MOST_POINTS: i64 = 200;

/// Counters of the hosts of a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostCounters {
    /// At most 64 series, by rank.
    pub series: Vec<HostCounter>,
    /// Series beyond that.
    pub left_out: usize,
}

/// A counter over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostCounter {
    /// The rank.
    pub rank: i64,
    /// What is counted.
    pub name: String,
    /// Which of its series; empty for a single one.
    pub series: String,
    /// Unit of the values, where known.
    pub unit: Option<String>,
    /// Samples.
    pub samples: usize,
    /// The first sample.
    pub first: f64,
    /// Mean of all samples.
    pub mean: f64,
    /// The largest sample.
    pub max: f64,
    /// At most 200 points, each the mean of the samples in one of 200 equal parts of the time: time of the first of them (ns on
    /// the clock of the rank), and value.
    pub points: Vec<(i64, f64)>,
}

/// Reads them, of all ranks or of one.
pub(super) fn read(profile: &Profile, rank: Option<i64>) -> Result<HostCounters, Error> {
    type Key = (i64, usize, String);
    type Samples = (Option<String>, Vec<(i64, f64)>);
    let mut found: BTreeMap<Key, Samples> = BTreeMap::new();
    let mut left_out: HashSet<Key> = HashSet::new();
    let rows = profile.read_where(
        Table::Counters,
        &["rank", "ts", "name", "series", "value", "unit"],
        Filter { rank, ..Filter::default() },
    )?;
    for row in 0..rows.len() {
        let (of, value) = (rows.ints("rank")[row], rows.floats("value")[row]);
        let name = rows.text(rows.texts("name")[row]);
        let Some(place) = NAMES.iter().position(|known| *known == name) else { continue };
        if !value.is_finite() {
            continue;
        }
        let key = (of, place, rows.text(rows.texts("series")[row]).to_owned());
        if found.len() >= MOST_SERIES && !found.contains_key(&key) {
            left_out.insert(key);
            continue;
        }
        let unit = rows.texts("unit")[row];
        let unit = || (unit != NO_TEXT).then(|| rows.text(unit).to_owned());
        found.entry(key).or_insert_with(|| (unit(), Vec::new())).1.push((rows.ints("ts")[row], value));
    }
    let series = found
        .into_iter()
        .map(|((rank, place, series), (unit, samples))| counter(rank, NAMES[place], series, unit, samples));
    Ok(HostCounters { series: series.collect(), left_out: left_out.len() })
}

/// A counter of at least one sample.
fn counter(rank: i64, name: &str, series: String, unit: Option<String>, mut samples: Vec<(i64, f64)>) -> HostCounter {
    samples.sort_by_key(|(ts, _)| *ts);
    let mean = |samples: &[(i64, f64)]| samples.iter().map(|(_, value)| value / samples.len() as f64).sum();
    let (from, to) = (samples[0].0, samples[samples.len() - 1].0);
    let width = to.abs_diff(from) / MOST_POINTS.unsigned_abs() + 1;
    let points = samples
        .chunk_by(|a, b| a.0.abs_diff(from) / width == b.0.abs_diff(from) / width)
        .map(|part| (part[0].0, mean(part)))
        .collect();
    HostCounter {
        rank,
        name: name.to_owned(),
        series,
        unit,
        samples: samples.len(),
        first: samples[0].1,
        mean: mean(&samples),
        max: samples.iter().map(|(_, value)| *value).fold(f64::NEG_INFINITY, f64::max),
        points,
    }
}

#[cfg(test)]
mod tests {
    use trace::schema::CounterRow;
    use trace::{Batch, Writer};

    use super::*;

    #[test]
    fn samples_become_a_bounded_number_of_points_and_series() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let mut writer = Writer::create(&path, "p").unwrap();
        let mut batch = Batch::new(Table::Counters);
        let mut push = |rank, ts, name, series: &str, value| {
            batch.push(&CounterRow { rank, track: 0, ts, name, series, value, unit: Some("B") });
        };
        for at in 0..1000i64 {
            push(0, at * 1_000_000, "process_memory", "", at as f64);
        }
        push(0, 5, "process_memory", "", f64::NAN);
        push(0, 0, "somebody's", "", 1.0);
        push(0, 0, "cpu_utilisation", "core 0", 1.0);
        for interface in 0..100 {
            push(0, 0, "network", &format!("eth{interface} sent"), 7.0);
        }
        push(1, i64::MIN, "disk", "read", 1.0);
        push(1, i64::MAX, "disk", "read", 3.0);
        writer.write_all(&[batch]).unwrap();
        writer.manifest().ranks = vec![0, 1];
        writer.finish().unwrap();
        let profile = Profile::open(&path).unwrap();

        let all = read(&profile, None).unwrap();
        assert_eq!((all.series.len(), all.left_out), (64, 38));
        let memory = &all.series[0];
        assert_eq!(
            (memory.name.as_str(), memory.samples, memory.first, memory.max),
            ("process_memory", 1000, 0.0, 999.0)
        );
        assert!((memory.mean - 499.5).abs() < 1e-9);
        assert!(memory.points.len() <= 200 && memory.points.len() > 190);
        assert!(memory.points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));

        let one = read(&profile, Some(1)).unwrap();
        assert_eq!((one.series.len(), one.left_out), (1, 0));
        assert_eq!(
            (one.series[0].points.len(), one.series[0].mean, one.series[0].unit.as_deref()),
            (2, 2.0, Some("B"))
        );
    }
}
