//! Summaries of many numbers.

use serde::Serialize;

/// How durations are distributed. Quantiles interpolate linearly between neighbours, as NumPy, pandas and SQL's
/// `percentile_cont` do; the spread is that of a sample (n − 1). All zero for no durations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// How many.
    pub count: u64,
    /// Sum, ns.
    pub sum_ns: i64,
    /// Mean, ns.
    pub mean_ns: f64,
    /// Standard deviation, ns; none below two durations.
    pub std_ns: Option<f64>,
    /// Smallest, ns.
    pub min_ns: i64,
    /// First quartile, ns.
    pub p25_ns: f64,
    /// Median, ns.
    pub median_ns: f64,
    /// Third quartile, ns.
    pub p75_ns: f64,
    /// 90th percentile, ns.
    pub p90_ns: f64,
    /// 99th percentile, ns.
    pub p99_ns: f64,
    /// Largest, ns.
    pub max_ns: i64,
}

/// How values without a unit of time are distributed; quantiles and spread as in [`Distribution`]. All zero for none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation; none below two values.
    pub std: Option<f64>,
    /// Smallest.
    pub min: f64,
    /// First quartile.
    pub p25: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub p75: f64,
    /// Largest.
    pub max: f64,
}

/// Counts of durations in bins of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Histogram {
    /// The bins, without a gap, in rising order.
    pub bins: Vec<Bin>,
}

/// A bin of a histogram: `from_ns <= duration < to_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Lower end, ns.
    pub from_ns: i64,
    /// Upper end, ns.
    pub to_ns: i64,
    /// Durations in it.
    pub count: u64,
}

impl Distribution {
    /// The distribution of these durations, ns; sorts them.
    pub(super) fn of(values: &mut [i64]) -> Self {
        values.sort_unstable();
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { return Self::default() };
        let sum: i128 = values.iter().map(|&value| i128::from(value)).sum();
        let mean = sum as f64 / values.len() as f64;
        let at = |share: f64| quantile(values.len(), share, |at| values[at] as f64);
        Distribution {
            count: values.len() as u64,
            sum_ns: i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX }),
            mean_ns: mean,
            std_ns: spread(values.len(), mean, values.iter().map(|&value| value as f64)),
            min_ns: min,
            p25_ns: at(0.25),
            median_ns: at(0.5),
            p75_ns: at(0.75),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            max_ns: max,
        }
    }
}

impl Summary {
    /// The distribution of these values; sorts them.
    pub(super) fn of(values: &mut [f64]) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { return Self::default() };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let at = |share: f64| quantile(values.len(), share, |at| values[at]);
        Summary {
            count: values.len() as u64,
            mean,
            std: spread(values.len(), mean, values.iter().copied()),
            min,
            p25: at(0.25),
            median: at(0.5),
            p75: at(0.75),
            max,
        }
    }

    /// The distribution of whole numbers, given how often each came: `counts[i]` times `low + i`.
    pub(super) fn of_counts(low: i64, counts: &[u64]) -> Self {
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return Self::default();
        }
        let values = || counts.iter().enumerate().map(|(at, &count)| ((low + at as i64) as f64, count));
        let mean = values().map(|(value, count)| value * count as f64).sum::<f64>() / count as f64;
        let squares: f64 = values().map(|(value, count)| (value - mean) * (value - mean) * count as f64).sum();
        let nth = |nth: usize| {
            let mut seen = 0;
            let found = values().find(|(_, count)| {
                seen += count;
                seen > nth as u64
            });
            found.map_or(0.0, |(value, _)| value)
        };
        let at = |share: f64| quantile(count as usize, share, nth);
        Summary {
            count,
            mean,
            std: (count > 1).then(|| (squares / (count - 1) as f64).sqrt()),
            min: at(0.0),
            p25: at(0.25),
            median: at(0.5),
            p75: at(0.75),
            max: at(1.0),
        }
    }
}

impl Histogram {
    /// Counts these sorted durations in at most `bins` bins from the smallest to the largest.
    pub(super) fn of(sorted: &[i64], bins: usize) -> Self {
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let bins = bins.max(1) as u64;
        let width = (max.abs_diff(min) / bins + 1).min(i64::MAX as u64) as i64;
        let mut histogram = Histogram::default();
        let (mut from, mut start) = (min, 0);
        while start < sorted.len() {
            let to = from.saturating_add(width);
            let count = sorted[start..].partition_point(|&value| value < to || to == i64::MAX);
            histogram.bins.push(Bin { from_ns: from, to_ns: to, count: count as u64 });
            start += count;
            from = to;
        }
        histogram
    }
}

/// The value below which `share` of `count` sorted values are.
fn quantile(count: usize, share: f64, value: impl Fn(usize) -> f64) -> f64 {
    let place = share * (count - 1) as f64;
    let (low, part) = (place.floor() as usize, place.fract());
    let at = value(low);
    if part == 0.0 { at } else { at + (value(low + 1) - at) * part }
}

fn spread(count: usize, mean: f64, values: impl Iterator<Item = f64>) -> Option<f64> {
    (count > 1).then(|| (values.map(|value| (value - mean) * (value - mean)).sum::<f64>() / (count - 1) as f64).sqrt())
}

/// `part / whole`, 0 where there is no whole.
pub(super) fn share(part: impl Into<i128>, whole: impl Into<i128>) -> f64 {
    let (part, whole) = (part.into(), whole.into());
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_as_pandas_does() {
        // pandas: Series([4, 1, 3, 2]).describe(percentiles=[.25, .5, .75, .9])
        let distribution = Distribution::of(&mut [4, 1, 3, 2]);
        assert_eq!((distribution.count, distribution.sum_ns, distribution.min_ns, distribution.max_ns), (4, 10, 1, 4));
        assert_eq!((distribution.p25_ns, distribution.median_ns, distribution.p75_ns), (1.75, 2.5, 3.25));
        assert!((distribution.p90_ns - 3.7).abs() < 1e-12);
        assert!((distribution.std_ns.unwrap() - 1.290_994_448_735_805_6).abs() < 1e-12);
        assert_eq!(Distribution::of(&mut [7]).std_ns, None);
        assert_eq!(Distribution::of(&mut []), Distribution::default());
        let summary = Summary::of(&mut [4.0, 1.0, 3.0, 2.0, 2.0]);
        assert_eq!(summary, Summary::of_counts(0, &[0, 1, 2, 1, 1]));
        assert_eq!(summary.median, 2.0);
    }

    #[test]
    fn a_histogram_counts_each_once() {
        let values = [0, 1, 2, 3, 9, 10];
        for bins in 1..20 {
            let histogram = Histogram::of(&values, bins);
            assert!(histogram.bins.len() <= bins);
            assert_eq!(histogram.bins.iter().map(|bin| bin.count).sum::<u64>(), 6);
            assert!(histogram.bins.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns));
        }
        assert_eq!(Histogram::of(&[5, 5], 4).bins, [Bin { from_ns: 5, to_ns: 6, count: 2 }]);
        assert_eq!(Histogram::of(&[i64::MIN, i64::MAX], 2).bins.iter().map(|bin| bin.count).sum::<u64>(), 2);
    }
}
