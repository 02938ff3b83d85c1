//! Unions of half-open intervals and what overlaps in them.

/// A half-open interval `[from, to)`, ns.
pub(super) type Interval = (i64, i64);

/// The union of intervals that come in order of their start: those that overlap or touch become one. Intervals of length 0 stay,
/// unless another holds them. (HTA's `merge_kernel_intervals`.)
pub(super) fn merge(sorted: impl IntoIterator<Item = Interval>) -> Vec<Interval> {
    let mut merged: Vec<Interval> = Vec::new();
    let mut reach = i64::MIN;
    for (from, to) in sorted {
        match merged.last_mut() {
            Some(last) if from <= reach => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
        reach = reach.max(to);
    }
    merged
}

/// The union of several unions.
pub(super) fn merge_all(parts: Vec<Vec<Interval>>) -> Vec<Interval> {
    let mut parts = parts;
    if parts.len() < 2 {
        return parts.pop().unwrap_or_default();
    }
    let mut all = parts.concat();
    // The parts are sorted runs, which a stable sort merges.
    all.sort_by_key(|interval| interval.0);
    merge(all)
}

/// Sum of lengths.
pub(super) fn total(merged: &[Interval]) -> i64 {
    merged.iter().map(|(from, to)| to.saturating_sub(*from)).fold(0, i64::saturating_add)
}

/// Time with exactly these of the given unions: entry `mask` is for those whose bits are set. Entry 0 is the time between.
pub(super) fn overlaps(unions: &[&[Interval]]) -> Vec<i64> {
    let mut edges: Vec<(i64, i32)> = Vec::with_capacity(unions.iter().map(|union| union.len() * 2).sum());
    for (bit, union) in unions.iter().enumerate() {
        edges.extend(union.iter().map(|interval| (interval.0, 1 << bit)));
        edges.extend(union.iter().map(|interval| (interval.1, -(1 << bit))));
    }
    edges.sort_by_key(|edge| edge.0);
    let mut times = vec![0; 1 << unions.len()];
    let mut running: i32 = 0;
    for (edge, next) in edges.iter().zip(edges.iter().skip(1)) {
        running += edge.1;
        // Never outside for proper intervals; those that HTA's rounding turned around may be.
        if let Some(time) = usize::try_from(running).ok().and_then(|mask| times.get_mut(mask)) {
            *time = i64::saturating_add(*time, next.0.saturating_sub(edge.0));
        }
    }
    times
}

/// A union that answers how much of a window it covers.
pub(super) struct Coverage<'i> {
    merged: &'i [Interval],
    /// Time covered before each interval.
    before: Vec<i64>,
}

impl<'i> Coverage<'i> {
    pub(super) fn new(merged: &'i [Interval]) -> Self {
        let mut sum = 0;
        let mut before = Vec::with_capacity(merged.len());
        for (from, to) in merged {
            before.push(sum);
            sum += to - from;
        }
        Self { merged, before }
    }

    /// Time covered before `at`.
    fn until(&self, at: i64) -> i64 {
        match self.merged.partition_point(|interval| interval.0 < at).checked_sub(1) {
            None => 0,
            Some(last) => self.before[last] + (at.min(self.merged[last].1) - self.merged[last].0),
        }
    }

    /// Time covered within `[from, to)`.
    pub(super) fn within(&self, from: i64, to: i64) -> i64 {
        if to <= from { 0 } else { self.until(to) - self.until(from) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether each ns of 0..60 is covered.
    fn covered(intervals: &[Interval]) -> Vec<bool> {
        (0..60).map(|at| intervals.iter().any(|(from, to)| *from <= at && at < *to)).collect()
    }

    fn some_intervals() -> impl Strategy<Value = Vec<Interval>> {
        proptest::collection::vec((0i64..40, 0i64..12), 0..12).prop_map(|pairs| {
            let mut intervals: Vec<Interval> = pairs.into_iter().map(|(from, length)| (from, from + length)).collect();
            intervals.sort_unstable();
            intervals
        })
    }

    proptest! {
        #[test]
        fn a_union_covers_what_its_intervals_cover(a in some_intervals(), b in some_intervals()) {
            let (one, two) = (merge(a.iter().copied()), merge(b.iter().copied()));
            prop_assert_eq!(covered(&one), covered(&a));
            prop_assert!(one.windows(2).all(|pair| pair[0].1 < pair[1].0));
            prop_assert_eq!(total(&one), covered(&a).iter().filter(|at| **at).count() as i64);
            let both = [a.clone(), b.clone()].concat();
            prop_assert_eq!(covered(&merge_all(vec![one.clone(), two.clone()])), covered(&both));
            let times = overlaps(&[&one, &two]);
            let expect = |x: bool, y: bool| covered(&a).iter().zip(covered(&b)).filter(|(p, q)| **p == x && *q == y).count() as i64;
            prop_assert_eq!(times[1], expect(true, false));
            prop_assert_eq!(times[2], expect(false, true));
            prop_assert_eq!(times[3], expect(true, true));
        }

        #[test]
        fn coverage_counts_the_window(a in some_intervals(), from in 0i64..50, length in 0i64..30) {
            let union = merge(a.iter().copied());
            let to = (from + length).min(60);
            let expect = covered(&a)[from as usize..to as usize].iter().filter(|at| **at).count() as i64;
            prop_assert_eq!(Coverage::new(&union).within(from, to), expect);
        }
    }
}
