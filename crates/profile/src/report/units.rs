//! Numbers and names for people: times, bytes, counts, shares, long names.

use std::collections::HashMap;

/// A unit of time for a column or an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
}

impl TimeUnit {
    /// The unit in which times up to this many ns read well.
    pub fn of(largest_ns: i64) -> Self {
        match largest_ns.unsigned_abs() {
            0..10_000 => TimeUnit::Ns,
            10_000..10_000_000 => TimeUnit::Us,
            10_000_000..10_000_000_000 => TimeUnit::Ms,
            _ => TimeUnit::S,
        }
    }

    /// Its sign.
    pub fn sign(self) -> &'static str {
        match self {
            TimeUnit::Ns => "ns",
            TimeUnit::Us => "µs",
            TimeUnit::Ms => "ms",
            TimeUnit::S => "s",
        }
    }

    /// A time in this unit, without its sign: `1,234.56`.
    pub fn number(self, ns: f64) -> String {
        match self {
            TimeUnit::Ns => fixed(ns, 0),
            TimeUnit::Us => fixed(ns / 1e3, 1),
            TimeUnit::Ms => fixed(ns / 1e6, 2),
            TimeUnit::S => fixed(ns / 1e9, 3),
        }
    }
}

/// A time with three or more digits that count: `532 ns`, `12.3 µs`, `1.73 s`.
pub fn time(ns: f64) -> String {
    let size = ns.abs();
    // Borders lie where rounding would print 1000 of the smaller unit.
    let (value, unit) = match size {
        _ if size < 999.5 => return format!("{} ns", fixed(ns, 0)),
        _ if size < 999_500.0 => (ns / 1e3, "µs"),
        _ if size < 999_500_000.0 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let decimals = match value.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{} {unit}", fixed(value, decimals))
}

/// Bytes in decimal units: `512 B`, `25.5 GB`.
pub fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "kB", "MB", "GB", "TB"] {
        let decimals = if unit == "B" || value.abs() >= 99.95 { 0 } else { 1 };
        if value.abs() < 999.5 || unit == "TB" {
            return format!("{} {unit}", fixed(value, decimals));
        }
        value /= 1000.0;
    }
    unreachable!("the last unit takes everything")
}

/// A whole number with its thousands apart: `1,234,567`.
pub fn count(number: u64) -> String {
    group(&number.to_string())
}

/// A share of 0 to 1 in percent: `12.3`.
pub fn percent(share: f64) -> String {
    if share.is_finite() { fixed(share * 100.0, 1) } else { "–".into() }
}

/// A number with thousands apart and a fixed number of decimals; a dash for what is no number.
pub fn fixed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let zero = text.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    let whole = if zero { whole.trim_start_matches('-') } else { whole };
    format!("{}{rest}", group(whole))
}

fn group(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |digits| ("-", digits));
    let mut text = String::from(sign);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A name cut in its middle to at most `width` characters, for both ends of a kernel's name tell.
pub fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (front, back) = (kept - kept / 3, kept / 3);
    let start: String = name.chars().take(front).collect();
    let end: String = name.chars().skip(length - back).collect();
    format!("{start}…{end}")
}

/// Names that stand below each other, cut like [`shorten`]; where that makes two different ones equal, what they begin with in
/// common gives way first, so that all differ.
pub fn shorten_all(names: &[&str], width: usize) -> Vec<String> {
    let mut different: Vec<&str> = names.to_vec();
    different.sort_unstable();
    different.dedup();
    let mut short: Vec<String> = different.iter().map(|name| shorten(name, width)).collect();
    if width >= NARROWEST_DISTINCT {
        let chars: Vec<Vec<char>> = different.iter().map(|name| name.chars().collect()).collect();
        tell_apart(&chars, (0..chars.len()).collect(), width, &mut short, MOST_CUTS);
    }
    names.iter().map(|name| short[different.binary_search(name).expect("it is one of them")].clone()).collect()
}

/// How often a name is cut anew, at most.
const MOST_CUTS: usize = 32;
/// Below this there is no room for a head, a mark and a difference.
const NARROWEST_DISTINCT: usize = 12;

/// Cuts anew, at most `cuts` times, those of the names in `places` whose short forms are equal.
fn tell_apart(names: &[Vec<char>], places: Vec<usize>, width: usize, short: &mut [String], cuts: usize) {
    let mut alike: HashMap<String, Vec<usize>> = HashMap::new();
    places.into_iter().for_each(|at| alike.entry(short[at].clone()).or_default().push(at));
    for group in alike.into_values() {
        let first = &names[group[0]];
        let Some(common) =
            group.iter().map(|&at| &names[at]).filter(|name| *name != first).map(|name| common(first, name)).min()
        else {
            continue;
        };
        let head = width / 3;
        let room = width - head - 1;
        // The difference begins with the word that it is in, unless that is long.
        let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
        let word = first[..common].iter().rev().take_while(|c| is_word(c)).count();
        let from = common - word.min(room / 3);
        if from <= head {
            continue;
        }
        for &at in &group {
            let (start, end): (String, String) =
                (names[at][..head].iter().collect(), names[at][from..].iter().collect());
            short[at] = format!("{start}…{}", shorten(&end, room));
        }
        if cuts > 1 {
            tell_apart(names, group, width, short, cuts - 1);
        }
    }
}

fn common(a: &[char], b: &[char]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A value of a counter in its unit: `25.5 GB`, `12.3 %`, `1,234`.
pub fn value(value: f64, unit: Option<&str>) -> String {
    let decimals = if value.fract() == 0.0 || value.abs() >= 1000.0 { 0 } else { 1 };
    match unit {
        Some("B") => bytes(value),
        Some("%") => format!("{} %", fixed(value, 1)),
        Some("1" | "") | None => fixed(value, decimals),
        Some(unit) => format!("{} {unit}", fixed(value, decimals)),
    }
}

/// A path as a shell reads it.
pub fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    // What begins with a dash would be an option.
    let path = if path.starts_with('-') { format!("./{path}") } else { path.to_owned() };
    if path.chars().any(char::is_control) {
        let escaped = |c: char| match c {
            '\\' | '\'' => format!("\\{c}"),
            c if c.is_control() => {
                let mut utf8 = [0; 4];
                c.encode_utf8(&mut utf8).bytes().map(|byte| format!("\\x{byte:02x}")).collect()
            }
            c => c.to_string(),
        };
        return format!("$'{}'", path.chars().map(escaped).collect::<String>());
    }
    match !path.is_empty() && path.chars().all(plain) {
        true => path,
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

/// One line without control characters: white space as blanks, all others as marks that no terminal or page obeys.
pub fn printable(name: &str) -> String {
    let mark = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    name.chars().map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_three_digits() {
        let cases = [
            (0.0, "0 ns"),
            (532.0, "532 ns"),
            (999.6, "1.00 µs"),
            (1_234.0, "1.23 µs"),
            (12_345.0, "12.3 µs"),
            (999_600.0, "1.00 ms"),
            (123_456_789.0, "123 ms"),
            (1_732_965_000.0, "1.73 s"),
            (-1_500.0, "-1.50 µs"),
            (4_000_000_000_000.0, "4,000 s"),
            (f64::NAN, "– s"),
        ];
        for (ns, text) in cases {
            assert_eq!(time(ns), text);
        }
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(fixed(-1234.5, 1), "-1,234.5");
        assert_eq!(fixed(-0.001, 1), "0.0");
        assert_eq!(percent(0.1234), "12.3");
        assert_eq!(percent(f64::NAN), "–");
        assert_eq!(bytes(50_950_507_584.0), "51.0 GB");
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(TimeUnit::of(20_000_000).number(12_345_678.0), "12.35");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shorten("short", 10), "short");
        let name = shorten(&"ab".repeat(50), 11);
        assert_eq!(name.chars().count(), 11);
        assert_eq!(name, "abababa…bab");
        assert_eq!(shorten("ééééé", 3), "éé…");
        assert_eq!(printable("a\u{1}b\nc"), "a\u{fffd}b c");
    }

    #[test]
    fn names_that_would_become_equal_keep_what_differs() {
        let kernel = |functor: &str| {
            format!(
                "void at::native::vectorized_elementwise_kernel<4, at::native::{functor}<float>, at::detail::Array<char*, 3> >(int)"
            )
        };
        let names: Vec<String> =
            ["CUDAFunctor_add", "CUDAFunctor_mul", "BinaryFunctor", "CUDAFunctor_add", "CUDAFunctor_addcmul"]
                .map(kernel)
                .into_iter()
                .chain(["Memset".into()])
                .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for width in [12, 16, 28, 36, 60] {
            let short = shorten_all(&names, width);
            assert!(short.iter().all(|name| name.chars().count() <= width), "{short:?}");
            assert_eq!(short[0], short[3]);
            let differ: std::collections::HashSet<&String> = short.iter().collect();
            assert_eq!(differ.len(), 5, "{short:?}");
        }
        assert!(shorten_all(&names, 40)[1].contains("CUDAFunctor_mul"));
        // Alone, a name keeps both ends.
        assert_eq!(shorten_all(&names[..1], 28), [shorten(names[0], 28)]);
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted("runs/a-1.profile"), "runs/a-1.profile");
        assert_eq!(quoted("my runs/a"), "'my runs/a'");
        assert_eq!(quoted("it's;"), r"'it'\''s;'");
        assert_eq!(quoted("-x"), "./-x");
        assert_eq!(quoted("a\n'b"), r"$'a\x0a\'b'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn counters_are_in_their_units() {
        assert_eq!(value(2_500_000.0, Some("B")), "2.5 MB");
        assert_eq!(value(150.25, Some("%")), "150.2 %");
        assert_eq!(value(12.0, Some("1")), "12");
        assert_eq!(value(0.25, None), "0.2");
        assert_eq!(value(3.0, Some("W")), "3 W");
    }
}
