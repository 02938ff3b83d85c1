//! Clocks of ranks, aligned by the ends of collectives: those are nearly simultaneous on all ranks, their starts are not.

use rustc_hash::FxHashMap;

use super::gather::CollectiveEnd;

/// How a rank's clock relates to the first rank's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Alignment {
    /// To be added to the rank's times, ns.
    pub offset_ns: i64,
    /// Median of the absolute deviations from the offset, ns.
    pub residual_ns: Option<i64>,
    /// Collectives matched.
    pub matched: i64,
    /// How they were matched.
    pub by: Option<&'static str>,
}

/// Aligns `other` to `reference`; ends are with their base.
pub(super) fn align(reference: &[&CollectiveEnd], other: &[&CollectiveEnd], base: i64, other_base: i64) -> Alignment {
    let by_identity = identities(reference, other);
    if by_identity.len() >= 3 {
        return fit(&by_identity, base, other_base, "group and sequence");
    }
    // The first collectives of a rank may be missing, or its last ones.
    let from_start = fit(&occurrences(reference, other, false), base, other_base, "order");
    let from_end = fit(&occurrences(reference, other, true), base, other_base, "order");
    match (from_start.residual_ns, from_end.residual_ns) {
        (Some(start), Some(end)) if end < start => from_end,
        _ => from_start,
    }
}

/// Pairs of ends of the same process group and sequence number; where a job counts anew, the first with the first and so on.
fn identities(reference: &[&CollectiveEnd], other: &[&CollectiveEnd]) -> Vec<(i64, i64)> {
    type Ends<'c> = FxHashMap<&'c (String, i64), Vec<(i64, i64)>>;
    fn ends<'c>(collectives: &[&'c CollectiveEnd]) -> Ends<'c> {
        let mut ends: Ends<'c> = FxHashMap::default();
        for collective in collectives {
            if let Some(identity) = &collective.identity {
                ends.entry(identity).or_default().push((collective.start, collective.end));
            }
        }
        ends.values_mut().for_each(|ends| ends.sort_unstable());
        ends
    }
    let reference = ends(reference);
    let mut pairs = Vec::new();
    for (identity, others) in ends(other) {
        // Of unequal numbers it is not known which are missing.
        if let Some(ends) = reference.get(identity)
            && ends.len() == others.len()
        {
            pairs.extend(ends.iter().zip(&others).map(|(end, other)| (end.1, other.1)));
        }
    }
    pairs
}

/// Pairs of ends of equal names, the first with the first or the last with the last.
fn occurrences(reference: &[&CollectiveEnd], other: &[&CollectiveEnd], from_end: bool) -> Vec<(i64, i64)> {
    let by_name = |collectives: &[&CollectiveEnd]| -> FxHashMap<String, Vec<(i64, i64)>> {
        let mut names: FxHashMap<String, Vec<(i64, i64)>> = FxHashMap::default();
        for collective in collectives {
            names.entry(collective.name.clone()).or_default().push((collective.start, collective.end));
        }
        for ends in names.values_mut() {
            ends.sort_unstable();
            if from_end {
                ends.reverse();
            }
        }
        names
    };
    let names = by_name(reference);
    let mut pairs = Vec::new();
    for (name, ends) in by_name(other) {
        let known = names.get(&name).map_or(&[][..], Vec::as_slice);
        pairs.extend(known.iter().zip(&ends).map(|(known, end)| (known.1, end.1)));
    }
    pairs
}

fn fit(pairs: &[(i64, i64)], base: i64, other_base: i64, by: &'static str) -> Alignment {
    if pairs.is_empty() {
        return Alignment::default();
    }
    let difference = |(end, other): &(i64, i64)| {
        let apart = i128::from(*end) + i128::from(base) - i128::from(*other) - i128::from(other_base);
        i64::try_from(apart).unwrap_or(if apart > 0 { i64::MAX } else { i64::MIN })
    };
    let differences: Vec<i64> = pairs.iter().map(difference).collect();
    let offset_ns = median(differences.clone());
    let residual_ns =
        median(differences.iter().map(|difference| difference.saturating_sub(offset_ns).saturating_abs()).collect());
    Alignment { offset_ns, residual_ns: Some(residual_ns), matched: pairs.len() as i64, by: Some(by) }
}

/// The lower median.
fn median(mut values: Vec<i64>) -> i64 {
    let middle = (values.len() - 1) / 2;
    *values.select_nth_unstable(middle).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collectives(names: &[(&str, Option<i64>, i64)]) -> Vec<CollectiveEnd> {
        let collective = |(name, number, end): &(&str, Option<i64>, i64)| CollectiveEnd {
            part: 0,
            identity: number.map(|number| ("world".to_owned(), number)),
            name: (*name).to_owned(),
            start: end - 10,
            end: *end,
        };
        names.iter().map(collective).collect()
    }

    fn aligned(a: &[CollectiveEnd], b: &[CollectiveEnd], base: i64, other_base: i64) -> Alignment {
        align(&a.iter().collect::<Vec<_>>(), &b.iter().collect::<Vec<_>>(), base, other_base)
    }

    #[test]
    fn bases_are_added_and_the_median_is_taken() {
        let a = collectives(&[("x", Some(1), 100), ("x", Some(2), 200), ("x", Some(3), 300), ("x", Some(4), 400)]);
        let b = collectives(&[("x", Some(2), 1205), ("x", Some(3), 1303), ("x", Some(4), 1600), ("x", Some(9), 7)]);
        let found = aligned(&a, &b, 1000, 0);
        assert_eq!((found.offset_ns, found.residual_ns, found.matched), (-5, Some(2), 3));
        assert_eq!(found.by, Some("group and sequence"));
    }

    #[test]
    fn numbers_that_begin_anew_are_paired_in_order() {
        let ends = |shift: i64| -> Vec<CollectiveEnd> {
            let names: Vec<_> = (0..20).map(|at| ("x", Some(at % 4), 1000 * at + shift)).collect();
            collectives(&names)
        };
        let found = aligned(&ends(0), &ends(7_000_000), 0, 0);
        assert_eq!((found.offset_ns, found.residual_ns, found.matched), (-7_000_000, Some(0), 20));
    }

    #[test]
    fn without_numbers_the_order_counts_even_if_the_first_are_missing() {
        let a = collectives(&[("x", None, 100), ("x", None, 250), ("x", None, 300), ("x", None, 900)]);
        let b = collectives(&[("x", None, 1250), ("x", None, 1300), ("x", None, 1900)]);
        let found = aligned(&a, &b, 0, 0);
        assert_eq!((found.offset_ns, found.residual_ns, found.by), (-1000, Some(0), Some("order")));
        assert_eq!(aligned(&a, &[], 0, 0), Alignment::default());
    }
}
