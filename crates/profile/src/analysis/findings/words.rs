//! Numbers as a sentence says them.

/// A time with two or three digits: `4.1 µs`, `76 ms`, `1.2 s`.
pub(super) fn time(ns: i64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let size = ns.unsigned_abs() as f64;
    // Borders lie where rounding would print 1000 of the smaller unit.
    match units.into_iter().find(|(unit, _)| size >= unit * 0.9995) {
        Some((unit, sign)) => {
            let value = ns as f64 / unit;
            format!("{value:.*} {sign}", if value.abs() < 99.95 { 1 } else { 0 })
        }
        None => format!("{ns} ns"),
    }
}

/// A share as a percentage: `18 %`, `2.4 %`.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    format!("{percent:.*} %", if percent < 9.95 { 1 } else { 0 })
}

/// A count of something: `1 gap`, `8 gaps`.
pub(super) fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The text with a capital first.
pub(super) fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + characters.as_str())
}

/// A name short enough for a sentence: without template arguments and argument lists, cut in the middle if it is still long.
pub(super) fn short(name: &str) -> String {
    const LONGEST: usize = 60;
    let mut name = crate::analysis::diff::similar(name).replace("(…)", "").replace("<…>", "");
    if let Some(rest) = name.strip_prefix("void ") {
        name = rest.to_owned();
    }
    let length = name.chars().count();
    if length <= LONGEST {
        return name;
    }
    let head: String = name.chars().take(LONGEST / 2).collect();
    let tail: String = name.chars().skip(length - LONGEST / 2 + 1).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let times = [0, 999, 1_000, 4_123, 76_000_000, 999_960_000, 1_234_567_890, 465_000_000_000];
        let expected = ["0 ns", "999 ns", "1.0 µs", "4.1 µs", "76.0 ms", "1.0 s", "1.2 s", "465 s"];
        assert_eq!(times.map(time), expected);
        assert_eq!([0.184, 0.0236, 0.0995, 1.0].map(percent), ["18 %", "2.4 %", "10 %", "100 %"]);
        assert_eq!(
            short("void at::native::elementwise_kernel<128, 2>(int, Functor)"),
            "at::native::elementwise_kernel"
        );
        assert_eq!(
            (counted(1, "gap", "gaps").as_str(), counted(8, "gap", "gaps").as_str(), capital("rank 3").as_str()),
            ("1 gap", "8 gaps", "Rank 3")
        );
        let long = short(&"x".repeat(100));
        assert_eq!(long.chars().count(), 60);
    }
}
