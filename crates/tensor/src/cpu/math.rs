//! Branch-free scalar functions: a loop over them inside `Arch::dispatch` vectorises for whatever the CPU has.
//!
//! The polynomials are minimax fits (Lawson's reweighted least squares) of the functions named beside them. NaN in
//! gives NaN out everywhere.

/// `1.5 * 2^23`: adding and subtracting it rounds to an integer, which stands in the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;
/// The part of ln 2 whose products with small integers are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// `sqrt(2 / π)`
const TANH_SLOPE: f32 = 0.797_884_6;
/// The cubic coefficient of the tanh form of GELU (Hendrycks and Gimpel, 2016).
const TANH_CUBIC: f32 = 0.044_715;
/// Beyond this the density of the normal distribution is 0 in `f32`.
const DENSITY_END: f32 = 16.0;
/// Beyond this `erfc` is 0 in `f32`.
const ERFC_END: f32 = 11.0;

/// `e^x`, within 2 units in the last place, with gradual underflow; `0` and `∞` at the ends.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = clamp(x, -104.0, 89.0);
    let shifted = f32::mul_add(x, std::f32::consts::LOG2_E, ROUNDER);
    let whole = shifted - ROUNDER;
    let r = f32::mul_add(whole, -LN_2_LOW, f32::mul_add(whole, -LN_2_HIGH, x));
    // (e^r - 1 - r) / r² on ±ln(2)/2
    let tail = polynomial(r, [0.5, 0.166_666_66, 0.041_666_295, 0.008_333_498, 0.001_394_470_5, 0.000_197_903_03]);
    let value = 1.0 + f32::mul_add(r * r, tail, r);
    // 2^whole in two factors, because it may be less than the smallest normal number or more than the largest.
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let half = exponent >> 1;
    value * power_of_two(half) * power_of_two(exponent.wrapping_sub(half))
}

/// The error function, within 2e-7.
#[inline(always)]
#[cfg(test)]
pub(super) fn erf(x: f32) -> f32 {
    let (complement, _) = erfc_of_magnitude(x);
    (1.0 - complement).copysign(x)
}

/// The hyperbolic tangent, within 4 units in the last place.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let square = x * x;
    // (tanh(x) - x) / x³ on ±0.625
    let tail = polynomial(square, [-0.333_332_84, 0.133_314_91, -0.053_743_497, 0.020_650_588, -0.005_717_045]);
    let near = f32::mul_add(x * square, tail, x);
    let far = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// The logistic function `1 / (1 + e^-x)` and its derivative.
#[inline(always)]
pub(super) fn sigmoid_with_derivative(x: f32) -> (f32, f32) {
    let small = exp(-x.abs());
    let large = 1.0 / (1.0 + small);
    (if x < 0.0 { small * large } else { large }, small * large * large)
}

/// `x Φ(x)`, with the exact normal distribution function Φ.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    x * normal_distribution(x).0
}

/// [`gelu`] and its derivative `Φ(x) + x φ(x)`.
#[inline(always)]
pub(super) fn gelu_with_derivative(x: f32) -> (f32, f32) {
    let (distribution, gaussian) = normal_distribution(x);
    let density = gaussian * (0.5 * std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2);
    (x * distribution, f32::mul_add(clamp(x, -DENSITY_END, DENSITY_END), density, distribution))
}

/// `x/2 (1 + tanh(√(2/π)(x + 0.044715 x³)))`
#[inline(always)]
pub(super) fn gelu_tanh(x: f32) -> f32 {
    x * sigmoid_with_derivative(gelu_tanh_inner(x)).0
}

/// [`gelu_tanh`] and its derivative.
#[inline(always)]
pub(super) fn gelu_tanh_with_derivative(x: f32) -> (f32, f32) {
    let (s, derivative) = sigmoid_with_derivative(gelu_tanh_inner(x));
    let bounded = clamp(x, -DENSITY_END, DENSITY_END);
    let slope = (2.0 * TANH_SLOPE) * f32::mul_add(3.0 * TANH_CUBIC * bounded, bounded, 1.0);
    (x * s, f32::mul_add(bounded * slope, derivative, s))
}

/// `2 √(2/π)(x + 0.044715 x³)`: `(1 + tanh(u)) / 2` is the logistic function of `2u`.
#[inline(always)]
fn gelu_tanh_inner(x: f32) -> f32 {
    (2.0 * TANH_SLOPE) * x * f32::mul_add(TANH_CUBIC * x, x, 1.0)
}

/// `Φ(x)`, to relative accuracy in the lower tail too, and `e^(-x²/2)`.
#[inline(always)]
fn normal_distribution(x: f32) -> (f32, f32) {
    let (complement, gaussian) = erfc_of_magnitude(x * std::f32::consts::FRAC_1_SQRT_2);
    let tail = 0.5 * complement;
    (if x > 0.0 { 1.0 - tail } else { tail }, gaussian)
}

/// `erfc(|x|)` and `e^(-x²)`. Their ratio is a polynomial in `s = 1 / (1 + 0.45|x|) - 1`, which is 1 at `s = 0`.
#[inline(always)]
fn erfc_of_magnitude(x: f32) -> (f32, f32) {
    let scaled = 0.45 * clamp(x.abs(), 0.0, ERFC_END);
    let s = -scaled / (1.0 + scaled);
    let slope = polynomial(
        s,
        [
            2.507_511_1,
            2.430_829_5,
            0.886_920_15,
            -0.260_757_4,
            -0.170_304_97,
            0.110_835_39,
            -0.007_583_304,
            -0.105_820_8,
            -0.041_481_78,
        ],
    );
    let gaussian = exp(-x * x);
    (gaussian * f32::mul_add(s, slope, 1.0), gaussian)
}

/// Horner's rule, lowest coefficient first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut value = coefficients[N - 1];
    for k in (0..N - 1).rev() {
        value = f32::mul_add(value, x, coefficients[k]);
    }
    value
}

/// Like `f32::clamp`, as two selects.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent.wrapping_add(127)) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(from: f32, to: f32, count: usize) -> impl Iterator<Item = f32> {
        (0..=count).map(move |i| from + (to - from) * (i as f32 / count as f32))
    }

    /// The Taylor series near 0, the continued fraction of the complement elsewhere.
    fn erf_f64(x: f64) -> f64 {
        let a = x.abs();
        let value = if a < 2.5 {
            let (mut term, mut sum) = (a, a);
            for n in 1..100 {
                term *= -a * a / n as f64;
                sum += term / (2 * n + 1) as f64;
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            1.0 - erfc_f64(a)
        };
        value.copysign(x)
    }

    fn erfc_f64(a: f64) -> f64 {
        if a < 2.5 {
            return 1.0 - erf_f64(a);
        }
        let fraction = (1..200).rev().fold(a, |f, k| a + k as f64 / 2.0 / f);
        (-a * a).exp() / fraction / std::f64::consts::PI.sqrt()
    }

    fn distribution_f64(x: f64) -> f64 {
        let tail = 0.5 * erfc_f64(x.abs() / std::f64::consts::SQRT_2);
        if x > 0.0 { 1.0 - tail } else { tail }
    }

    fn ulps(got: f32, want: f64) -> f64 {
        let rounded = (want as f32).abs();
        let unit = f32::from_bits(rounded.to_bits() + 1) as f64 - rounded as f64;
        (got as f64 - want).abs() / unit
    }

    #[test]
    fn exp_is_within_two_ulps_over_the_whole_range() {
        for x in grid(-103.5, 88.72, 400_000) {
            assert!(ulps(exp(x), (x as f64).exp()) <= 2.0, "exp({x}) = {:e}", exp(x));
        }
        assert_eq!([exp(0.0), exp(-200.0), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        assert_eq!([exp(88.8), exp(1e30), exp(f32::INFINITY)], [f32::INFINITY; 3]);
    }

    #[test]
    fn erf_is_odd_saturates_and_is_within_2e_7() {
        for x in grid(0.0, 6.0, 100_000) {
            assert!((erf(x) as f64 - erf_f64(x as f64)).abs() <= 2e-7, "erf({x})");
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!([erf(10.0), erf(f32::INFINITY), erf(f32::NEG_INFINITY), erf(1e30)], [1.0, 1.0, -1.0, 1.0]);
    }

    #[test]
    fn tanh_is_within_four_ulps_odd_and_saturates() {
        for x in grid(0.0, 10.0, 200_000).chain(grid(0.0, 1e-3, 1000)) {
            assert!(ulps(tanh(x), (x as f64).tanh()) <= 4.0, "tanh({x})");
            assert_eq!(tanh(-x), -tanh(x));
        }
        assert_eq!([tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(1e-30)], [1.0, -1.0, 1e-30]);
    }

    #[test]
    fn gelu_and_its_derivative_match_the_normal_distribution() {
        for x in grid(-8.0, 8.0, 100_000) {
            let wide = x as f64;
            let distribution = distribution_f64(wide);
            let density = (-wide * wide / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let (value, derivative) = gelu_with_derivative(x);
            assert_eq!(value, gelu(x));
            assert!((value as f64 - wide * distribution).abs() <= 2e-7 * wide.abs().max(1.0), "gelu({x})");
            assert!((derivative as f64 - (distribution + wide * density)).abs() <= 3e-7, "gelu'({x})");
        }
        let deep = gelu(-5.0) as f64 / (-5.0 * distribution_f64(-5.0));
        assert!((deep - 1.0).abs() < 2e-6, "the lower tail keeps its relative accuracy: {deep}");
        assert_eq!(gelu_with_derivative(1e20), (1e20, 1.0));
        assert_eq!(gelu_with_derivative(-1e20).1, 0.0);
    }

    #[test]
    fn tanh_form_of_gelu_and_its_derivative_match_their_formula() {
        for x in grid(-8.0, 8.0, 100_000) {
            let (wide, k, c) = (x as f64, (2.0 / std::f64::consts::PI).sqrt(), 0.044715);
            let t = (k * (wide + c * wide.powi(3))).tanh();
            let want = 0.5 * wide * (1.0 + t);
            let slope = 0.5 * (1.0 + t) + 0.5 * wide * (1.0 - t * t) * k * (1.0 + 3.0 * c * wide * wide);
            let (value, derivative) = gelu_tanh_with_derivative(x);
            assert_eq!(value, gelu_tanh(x));
            assert!((value as f64 - want).abs() <= 3e-7 * wide.abs().max(1.0), "gelu_tanh({x})");
            assert!((derivative as f64 - slope).abs() <= 4e-7, "gelu_tanh'({x})");
        }
        assert_eq!(gelu_tanh_with_derivative(1e20), (1e20, 1.0));
        assert_eq!(gelu_tanh_with_derivative(-1e20).1, 0.0);
    }

    #[test]
    fn nan_stays_nan() {
        let (value, derivative) = gelu_with_derivative(f32::NAN);
        let (tanh_value, tanh_derivative) = gelu_tanh_with_derivative(f32::NAN);
        let results =
            [exp(f32::NAN), erf(f32::NAN), tanh(f32::NAN), sigmoid_with_derivative(f32::NAN).0, gelu(f32::NAN)];
        assert!(results.iter().all(|v| v.is_nan()), "{results:?}");
        assert!([value, derivative, tanh_value, tanh_derivative, gelu_tanh(f32::NAN)].iter().all(|v| v.is_nan()));
    }
}
