//! What is done to a tile of scores, row by row. Rows are whole groups of [`GROUP`] columns, so that loops over them
//! vectorise without remainders; what stands behind the last key is zero afterwards.

use std::ops::Range;

use pulp::Simd;

use crate::cpu::gemm::operand::Data;
use crate::dtype::Element;
use crate::kernels::Dropout;

/// Columns of a group, and of a draw of dropout masks.
pub const GROUP: usize = 32;

/// `Σ row`, in interleaved sums that are then added in pairs. The row is a whole number of [`GROUP`]s.
#[inline(always)]
fn sum<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (vectors, _) = S::as_simd_f32s(row);
    simd.reduce_sum_f32s(vectors.iter().fold(simd.splat_f32s(0.0), |sum, &v| simd.add_f32s(sum, v)))
}

/// The largest element of a whole number of [`GROUP`]s.
#[inline(always)]
fn max<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (vectors, _) = S::as_simd_f32s(row);
    simd.reduce_max_f32s(vectors.iter().fold(simd.splat_f32s(f32::NEG_INFINITY), |most, &v| simd.max_f32s(most, v)))
}

/// `Σ a b` over a range of elements.
///
/// # Panics
/// When the types differ.
#[inline(always)]
pub fn dot(a: Data, b: Data, range: Range<usize>) -> f32 {
    match (a, b) {
        (Data::F32(a), Data::F32(b)) => dot_of(&a[range.clone()], &b[range]),
        (Data::Bf16(a), Data::Bf16(b)) => dot_of(&a[range.clone()], &b[range]),
        (Data::F16(a), Data::F16(b)) => dot_of(&a[range.clone()], &b[range]),
        _ => panic!("an output and its gradient share one type"),
    }
}

#[inline(always)]
fn dot_of<T: Element>(a: &[T], b: &[T]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = a.to_f32().mul_add(b.to_f32(), *sum);
        }
    }
    sums.iter().sum()
}

/// One query's running softmax.
#[derive(Clone, Copy)]
pub struct Running {
    /// The largest scaled score so far, times `log₂ e`.
    pub most: f32,
    /// `Σ 2^(score - most)`.
    pub sum: f32,
}

impl Running {
    pub const START: Self = Self { most: f32::NEG_INFINITY, sum: 0.0 };

    /// Turns a row of unscaled scores, of which the first `keys` exist, into `2^(scaled score - most)`, and returns what
    /// earlier results are to be multiplied by. `scale` includes `log₂ e`.
    #[inline(always)]
    pub fn advance<S: Simd>(&mut self, simd: S, row: &mut [f32], keys: usize, scale: f32) -> f32 {
        row[keys..].fill(f32::NEG_INFINITY);
        let most = max(simd, row) * scale;
        let most = if most > self.most { most } else { self.most };
        let factor = exp2(self.most - most);
        for value in row.iter_mut() {
            *value = exp2(value.mul_add(scale, -most));
        }
        row[keys..].fill(0.0);
        self.sum = self.sum.mul_add(factor, sum(simd, row));
        self.most = most;
        factor
    }

    /// The logarithm of the softmax's denominator.
    pub fn log_sum(&self) -> f32 {
        self.most.mul_add(std::f32::consts::LN_2, self.sum.ln())
    }
}

/// Probabilities from unscaled scores and the logarithm of the denominator; `scale` includes `log₂ e`.
#[inline(always)]
pub fn probabilities(row: &mut [f32], keys: usize, scale: f32, log_sum: f32) {
    let log_sum = log_sum * std::f32::consts::LOG2_E;
    for value in row.iter_mut() {
        *value = exp2(value.mul_add(scale, -log_sum));
    }
    row[keys..].fill(0.0);
}

/// `2^x` for `x` of at most a little more than 0, within 2 units in the last place; `2^-126` for anything smaller.
#[inline(always)]
fn exp2(x: f32) -> f32 {
    /// `1.5 * 2^23`: adding it rounds to an integer, which stands in the low bits of the sum.
    const ROUNDER: f32 = 12_582_912.0;
    /// A minimax fit (Lawson's reweighted least squares) of 2^x on ±1/2.
    const FIT: [f32; 6] = [1.000_000_1, 0.693_146_94, 0.240_221_2, 0.055_507_135, 0.009_675_543, 0.001_327_647_4];
    let x = if x < -126.0 { -126.0 } else { x };
    let shifted = x + ROUNDER;
    let rest = x - (shifted - ROUNDER);
    let value = FIT.iter().rev().fold(0.0, |value, &coefficient| f32::mul_add(value, rest, coefficient));
    let power = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127) << 23;
    value * f32::from_bits(power)
}

/// Dropout on one head's probabilities.
#[derive(Clone, Copy)]
pub struct Mask<'a> {
    pub dropout: &'a Dropout<'a>,
    pub head: usize,
}

impl Mask<'_> {
    /// Factors (0 or the scale) for the keys from `first_key`, a multiple of 4, of the query at row `token`.
    #[inline(always)]
    pub fn factors(&self, token: usize, first_key: usize, factors: &mut [f32]) {
        let row = self.dropout.rows[token];
        let (threshold, scale) = (self.dropout.threshold(), self.dropout.scale());
        let first_block = Dropout::attention_column(self.head, first_key) / 4;
        for (group, factors) in factors.chunks_exact_mut(GROUP).enumerate() {
            let words = self.dropout.stream.blocks::<{ GROUP / 4 }>(row, first_block + (group * GROUP / 4) as u32);
            for (block, factors) in factors.chunks_exact_mut(4).enumerate() {
                for (factor, words) in factors.iter_mut().zip(&words) {
                    *factor = if (words[block] as u32) < threshold { 0.0 } else { scale };
                }
            }
        }
    }
}

/// Keys of a block that a query sees: all, or those up to its own position.
pub fn visible(causal: bool, query: usize, keys: &Range<usize>) -> usize {
    if causal { (query + 1).clamp(keys.start, keys.end) - keys.start } else { keys.len() }
}

#[cfg(test)]
mod tests {
    use super::exp2;

    #[test]
    fn powers_of_two_are_within_two_ulps_where_softmax_needs_them() {
        for i in 0..=400_000 {
            let x = i as f32 * -3.14e-4;
            let (got, want) = (exp2(x) as f64, (x as f64).exp2());
            assert!((got - want).abs() <= 2.0 * f32::EPSILON as f64 * want, "2^{x}: {got:e} for {want:e}");
        }
        assert_eq!([exp2(-126.5), exp2(f32::NEG_INFINITY)], [2f32.powi(-126); 2].map(|v| v * exp2(0.0)));
        assert!(exp2(f32::NAN).is_nan());
    }
}
