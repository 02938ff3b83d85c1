//! Element types and their conversions.

use half::{bf16, f16};

/// The type of a tensor's elements.
///
/// Arithmetic is done in `f32` (in `f64` by the reference kernels); [`BF16`](DType::BF16) and [`F16`](DType::F16) are
/// storage formats, widened when read and rounded to nearest even when written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// The upper 16 bits of a binary32.
    BF16,
    /// IEEE 754 binary16.
    F16,
    /// Integers from -127 to 127 with a scale for each row: weights as [`Kernels::quantize`](crate::Kernels::quantize) makes
    /// them, which only `linear` reads.
    I8,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::I8 => 1,
        }
    }

    /// The lower-case name used in files and messages: `f64`, `f32`, `bf16`, `f16` or `int8`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I8 => "int8",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a tensor can hold: `f64`, `f32`, `bf16` or `f16`.
///
/// Sealed, because [`Tensor`](crate::Tensor) hands out slices of it over raw pool memory: every bit pattern must be a
/// valid value.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The tensor type that holds this element.
    const DTYPE: DType;
    /// Widens, or rounds an `f64` to nearest even.
    fn to_f32(self) -> f32;
    /// Rounds to nearest even.
    fn from_f32(value: f32) -> Self;
    /// Widens without loss.
    fn to_f64(self) -> f64;
    /// Rounds to nearest even.
    fn from_f64(value: f64) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $to_f32:expr, $from_f32:expr, $to_f64:expr, $from_f64:expr) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                $from_f32(value)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }
        }
    };
}

element!(f64, F64, |v| v as f32, |v| v as f64, |v| v, |v| v);
element!(f32, F32, |v| v, |v| v, |v| v as f64, |v| v as f32);
element!(f16, F16, widen_f16, round_to_f16, |v| widen_f16(v) as f64, f16::from_f64);

/// Branch-free, so that loops over it vectorise: the exponent moves by a multiplication, which also normalises
/// subnormal numbers.
#[inline(always)]
fn widen_f16(value: f16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    const INFINITE: u32 = 0x7c00;
    let bits = value.to_bits() as u32;
    let finite = (f32::from_bits((bits & 0x7fff) << 13) * REBIAS).to_bits();
    let magnitude = if bits & INFINITE == INFINITE { finite | 0x7f80_0000 } else { finite };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

/// Branch-free, so that loops over it vectorise; a NaN becomes the quiet NaN of its sign.
#[inline(always)]
fn round_to_f16(value: f32) -> f16 {
    /// The least `f32` bits of a normal `f16`, and of what is beyond every `f16`.
    const NORMAL: u32 = (127 - 14) << 23;
    const BEYOND: u32 = (127 + 16) << 23;
    const INFINITY: u32 = 0x7f80_0000;
    /// Adding `0.5` leaves a subnormal's bits, rounded, at the bottom of the sum.
    const HALF: f32 = 0.5;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let subnormal = (f32::from_bits(magnitude) + HALF).to_bits().wrapping_sub(HALF.to_bits());
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let special = if magnitude > INFINITY { 0x7e00 } else { 0x7c00 };
    let rounded = if magnitude < BEYOND { finite } else { special };
    f16::from_bits((rounded | (bits >> 16) & 0x8000) as u16)
}

impl sealed::Sealed for bf16 {}
impl Element for bf16 {
    const DTYPE: DType = DType::BF16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    /// Branch-free, so that loops over it vectorise; a NaN stays a NaN.
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet_nan = (bits >> 16) | 0x40;
        bf16::from_bits(if value.is_nan() { quiet_nan } else { rounded } as u16)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        Element::to_f32(self) as f64
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        bf16::from_f64(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_even_and_keeps_nan_and_infinity() {
        let cases =
            [0.0, -0.0, 1.0, 1.003_906_2, 1.011_718_8, -3.4e38, 1e-40, f32::INFINITY, f32::NEG_INFINITY, 3.5e-3];
        for value in cases {
            assert_eq!(<bf16 as Element>::from_f32(value).to_bits(), bf16::from_f32(value).to_bits(), "{value}");
        }
        assert!(<bf16 as Element>::from_f32(f32::NAN).is_nan());
        assert!(<bf16 as Element>::from_f32(f32::from_bits(0x7f80_0001)).is_nan());
    }

    #[test]
    fn f16_widens_and_rounds_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (Element::to_f32(f16::from_bits(bits)), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
        }
        let edges = [65_504.0, 65_519.99, 65_520.0, 65_536.0, 6.1e-5, 5.96e-8, 2.98e-8, 2.99e-8, 0.0, f32::INFINITY];
        let steps = (0..2_000_000u32).map(|i| f32::from_bits(i * 1_069 + 0x3200_0000));
        for value in edges.into_iter().chain(steps).flat_map(|v| [v, -v]) {
            let (ours, theirs) = (<f16 as Element>::from_f32(value), f16::from_f32(value));
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{value:e}");
        }
        assert!(<f16 as Element>::from_f32(f32::NAN).is_nan());
    }
}
