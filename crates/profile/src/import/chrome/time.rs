//! Decimal text to integer nanoseconds. A double holds 690 ms after the epoch only to a few hundred nanoseconds, so no time goes
//! through one.

/// Times, durations and bases stay below this, ns (146 years): the sum of two still fits.
pub(super) const MAX_TIME: u64 = 1 << 62;

/// A time read from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time {
    /// Nanoseconds.
    pub ns: i64,
    /// Digits finer than a nanosecond were rounded away.
    pub rounded: bool,
    /// The nanoseconds are no whole microseconds.
    pub fine: bool,
}

/// Why a text is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTime {
    /// It is no decimal number.
    Malformed,
    /// 64 bits cannot hold it.
    OutOfRange,
}

/// Microseconds as JSON writes numbers (`-12`, `3.5`, `1.7e15`), to nanoseconds, ties to even.
pub(super) fn ns_from_us(text: &str) -> Result<Time, NoTime> {
    let (ns, rounded) = scaled(text, 3)?;
    Ok(Time { ns, rounded, fine: ns % 1000 != 0 })
}

/// The decimal number times `10^shift` as an integer, ties to even, and whether it was rounded.
fn scaled(text: &str, shift: i32) -> Result<(i64, bool), NoTime> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], digits[at + 1..].parse::<i32>().map_err(|_| NoTime::Malformed)?),
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction) {
        return Err(NoTime::Malformed);
    }
    // The value is `whole fraction * 10^power`.
    let power = i64::from(shift) + i64::from(exponent) - fraction.len() as i64;
    let dropped = usize::try_from(-power).unwrap_or(0);
    let count = whole.len() + fraction.len();
    let digit = |at: usize| {
        let byte = if at < whole.len() { whole.as_bytes()[at] } else { fraction.as_bytes()[at - whole.len()] };
        i64::from(byte - b'0')
    };
    let kept = count.saturating_sub(dropped);
    let mut value: i64 = 0;
    for at in 0..kept {
        value = value.checked_mul(10).and_then(|value| value.checked_add(digit(at))).ok_or(NoTime::OutOfRange)?;
    }
    for _ in 0..power.max(0) {
        if value == 0 {
            break;
        }
        value = value.checked_mul(10).ok_or(NoTime::OutOfRange)?;
    }
    let mut rounded = false;
    if dropped > 0 && dropped <= count {
        let first = digit(kept);
        let rest = (kept + 1..count).any(|at| digit(at) != 0);
        rounded = first != 0 || rest;
        if first > 5 || (first == 5 && (rest || value % 2 == 1)) {
            value = value.checked_add(1).ok_or(NoTime::OutOfRange)?;
        }
    } else if dropped > count {
        rounded = (0..count).any(|at| digit(at) != 0);
    }
    Ok((if negative { -value } else { value }, rounded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals_are_exact() {
        let ns = |text| ns_from_us(text).map(|time| time.ns);
        assert_eq!(ns("1712195495519689.047"), Ok(1_712_195_495_519_689_047));
        assert_eq!(ns("4458676983543.183"), Ok(4_458_676_983_543_183));
        assert_eq!(ns("12"), Ok(12_000));
        assert_eq!(ns("-0.5"), Ok(-500));
        assert_eq!(ns("1.5e3"), Ok(1_500_000));
        assert_eq!(ns("15E-4"), Ok(2)); // 1.5 ns: to the even neighbour
        assert_eq!(ns("0.0025"), Ok(2)); // 2.5 ns
        assert_eq!(ns("0.0035"), Ok(4)); // 3.5 ns
        assert_eq!(ns("0.00250000001"), Ok(3));
        assert_eq!(ns("0e999999999"), Ok(0));
        assert_eq!(ns("1e-999999999"), Ok(0));
        assert!(ns_from_us("0.0001").unwrap().rounded);
        assert!(!ns_from_us("0.001000").unwrap().rounded);
        assert_eq!(ns("9223372036854775.807"), Ok(i64::MAX));
        assert_eq!(ns("9223372036854775.808"), Err(NoTime::OutOfRange));
        assert_eq!(ns("1e999999999"), Err(NoTime::OutOfRange));
        for text in ["", ".", "-", "1.2.3", "1e", "0x10", "nan", " 1", "1_000", "1e99999999999"] {
            assert_eq!(ns(text), Err(NoTime::Malformed), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_nanosecond_comes_back(ns in (i64::MIN + 1)..=i64::MAX) {
            let text = format!("{}{}.{:03}", if ns < 0 { "-" } else { "" }, ns.unsigned_abs() / 1000, ns.unsigned_abs() % 1000);
            prop_assert_eq!(ns_from_us(&text), Ok(Time { ns, rounded: false, fine: ns % 1000 != 0 }));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = ns_from_us(&text);
        }
    }
}
