//! Numbers for people: times, bytes, counts and shares.

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
}
