//! Kernels that treat every element alike.

use half::{bf16, f16};

use super::CpuKernels;
use super::parallel::{PIECE, assert_same_shape, for_pieces, parts, rows_per_piece};
use crate::dtype::{DType, Element};
use crate::kernels::Dropout;
use crate::random::Stream;
use crate::tensor::Tensor;

/// Columns whose random words are drawn together: 16 blocks of the generator fill its vector registers.
const DRAWN: usize = 64;
/// Partial sums that a reduction keeps, so that it is neither serial nor dependent on the width of the registers.
pub(super) const LANES: usize = 32;

/// See [`Kernels::add_assign`](crate::Kernels::add_assign).
pub(super) fn add_assign(kernels: &CpuKernels, a: &mut Tensor, b: &Tensor) {
    assert_same_shape(a, b);
    with_element!(a.dtype(), T => {
        let (a, b) = (parts::<T>(a), b.as_slice::<T>());
        for_pieces(&kernels.team, b.len(), PIECE, |_, range| {
            // SAFETY: the ranges of the pieces are disjoint.
            let a = unsafe { a.part(range.clone()) };
            let b = &b[range];
            vectorized!(kernels, {
                for (a, b) in a.iter_mut().zip(b) {
                    *a = T::from_f32(a.to_f32() + b.to_f32());
                }
            });
        });
    });
}

/// See [`Kernels::zero`](crate::Kernels::zero).
pub(super) fn zero(kernels: &CpuKernels, a: &mut Tensor) {
    with_element!(a.dtype(), T => {
        let len = a.len();
        let a = parts::<T>(a);
        for_pieces(&kernels.team, len, 8 * PIECE, |_, range| {
            // SAFETY: the ranges of the pieces are disjoint.
            unsafe { a.part(range) }.fill(T::from_f32(0.0));
        });
    });
}

/// See [`Kernels::cast`](crate::Kernels::cast).
pub(super) fn cast(kernels: &CpuKernels, source: &Tensor, target: &mut Tensor) {
    fn to<S: Element>(kernels: &CpuKernels, source: &Tensor, target: &mut Tensor) {
        match target.dtype() {
            DType::F64 => copy::<S, f64>(kernels, source, target, |v| v.to_f64()),
            DType::F32 => copy::<S, f32>(kernels, source, target, |v| v.to_f32()),
            DType::BF16 if S::DTYPE == DType::F64 => {
                copy::<S, bf16>(kernels, source, target, |v| Element::from_f64(v.to_f64()))
            }
            DType::BF16 => copy::<S, bf16>(kernels, source, target, |v| Element::from_f32(v.to_f32())),
            DType::F16 if S::DTYPE == DType::F64 => {
                copy::<S, f16>(kernels, source, target, |v| Element::from_f64(v.to_f64()))
            }
            DType::F16 => copy::<S, f16>(kernels, source, target, |v| Element::from_f32(v.to_f32())),
            DType::I8 => panic!("{}", crate::tensor::INT8),
        }
    }
    assert_same_shape(source, target);
    match source.dtype() {
        DType::F64 => to::<f64>(kernels, source, target),
        DType::F32 => to::<f32>(kernels, source, target),
        DType::BF16 => to::<bf16>(kernels, source, target),
        DType::F16 => to::<f16>(kernels, source, target),
        DType::I8 => panic!("{}", crate::tensor::INT8),
    }
}

fn copy<S: Element, T: Element>(
    kernels: &CpuKernels,
    source: &Tensor,
    target: &mut Tensor,
    convert: impl Fn(S) -> T + Copy + Sync,
) {
    let (source, target) = (source.as_slice::<S>(), parts::<T>(target));
    for_pieces(&kernels.team, source.len(), 2 * PIECE, |_, range| {
        // SAFETY: the ranges of the pieces are disjoint.
        let target = unsafe { target.part(range.clone()) };
        let source = &source[range];
        vectorized!(kernels, {
            for (t, &s) in target.iter_mut().zip(source) {
                *t = convert(s);
            }
        });
    });
}

/// See [`Kernels::sum_of_squares`](crate::Kernels::sum_of_squares). Every piece of a tensor gives one partial sum;
/// those are added in order.
pub(super) fn sum_of_squares(kernels: &CpuKernels, tensors: &[&Tensor]) -> f64 {
    let pieces = |tensor: &Tensor| tensor.len().div_ceil(PIECE);
    let ends: Vec<usize> = tensors
        .iter()
        .scan(0, |end, tensor| {
            *end += pieces(tensor);
            Some(*end)
        })
        .collect();
    let count = ends.last().copied().unwrap_or(0);
    let mut sums = kernels.pool.empty(DType::F64, &[count]);
    let partial = parts::<f64>(&mut sums);
    for_pieces(&kernels.team, count, 1, |_, piece| {
        let which = ends.partition_point(|&end| end <= piece.start);
        let tensor = tensors[which];
        let start = (piece.start + pieces(tensor) - ends[which]) * PIECE;
        let range = start..(start + PIECE).min(tensor.len());
        let sum = with_element!(tensor.dtype(), T => {
            let values = &tensor.as_slice::<T>()[range];
            vectorized!(kernels, squares(values))
        });
        // SAFETY: every piece has its own element.
        let partial = unsafe { partial.part(piece) };
        partial[0] = sum;
    });
    sums.as_slice::<f64>().iter().sum()
}

#[inline(always)]
fn squares<T: Element>(values: &[T]) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f64; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            let wide = chunk[lane].to_f32() as f64;
            lanes[lane] += wide * wide;
        }
    }
    let tail: f64 = rest.iter().map(|value| value.to_f64() * value.to_f64()).sum();
    lanes.iter().sum::<f64>() + tail
}

/// See [`Kernels::all_finite`](crate::Kernels::all_finite).
pub(super) fn all_finite(kernels: &CpuKernels, x: &Tensor) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    let finite = AtomicBool::new(true);
    with_element!(x.dtype(), T => {
        let x = x.as_slice::<T>();
        for_pieces(&kernels.team, x.len(), 2 * PIECE, |_, range| {
            let x = &x[range];
            let all = vectorized!(kernels, {
                x.iter().fold(true, |all, value| all & value.to_f32().is_finite())
            });
            if !all {
                finite.store(false, Ordering::Relaxed);
            }
        });
    });
    finite.into_inner()
}

/// See [`Kernels::dropout`](crate::Kernels::dropout).
pub(super) fn dropout(kernels: &CpuKernels, x: &Tensor, dropout: &Dropout, y: &mut Tensor) {
    assert_same_shape(x, y);
    let (rows, columns) = (x.rows(), x.columns());

    let mask = Mask::new(dropout, rows);
    with_element!(x.dtype(), T => {
        let (x, y) = (x.as_slice::<T>(), parts::<T>(y));
        for_pieces(&kernels.team, rows, rows_per_piece(columns), |_, range| {
            let elements = range.start * columns..range.end * columns;
            // SAFETY: the rows of the pieces are disjoint.
            let y = unsafe { y.part(elements.clone()) };
            let x = &x[elements];
            vectorized!(kernels, {
                for (row, (y, x)) in range.zip(y.chunks_exact_mut(columns).zip(x.chunks_exact(columns))) {
                    mask.apply(row, x, y);
                }
            });
        });
    });
}

/// A [`Dropout`] ready to be applied row by row.
#[derive(Clone, Copy)]
pub(super) struct Mask<'a> {
    rows: &'a [u64],
    stream: Stream,
    threshold: u32,
    scale: f32,
}

impl<'a> Mask<'a> {
    pub fn new(dropout: &Dropout<'a>, rows: usize) -> Self {
        assert_eq!(dropout.rows.len(), rows, "one identity for every row");
        Self { rows: dropout.rows, stream: dropout.stream, threshold: dropout.threshold(), scale: dropout.scale() }
    }

    /// `y = mask * x` for one row.
    #[inline(always)]
    pub fn apply<S: Element, T: Element>(&self, row: usize, x: &[S], y: &mut [T]) {
        self.for_each_factor(row, x.len(), |first, factors| {
            let columns = first..first + factors.len();
            for ((y, x), factor) in y[columns.clone()].iter_mut().zip(&x[columns]).zip(factors) {
                *y = T::from_f32(x.to_f32() * factor);
            }
        });
    }

    /// Calls `work(first column, factors)` for the columns of a row in groups, where a factor is 0 or the scale.
    #[inline(always)]
    pub fn for_each_factor(&self, row: usize, columns: usize, mut work: impl FnMut(usize, &[f32])) {
        let whole = columns / DRAWN * DRAWN;
        for first in (0..whole).step_by(DRAWN) {
            work(first, &self.factors(row, first));
        }
        if whole < columns {
            work(whole, &self.factors(row, whole)[..columns - whole]);
        }
    }

    #[inline(always)]
    fn factors(&self, row: usize, first: usize) -> [f32; DRAWN] {
        let words = draw(&self.stream, self.rows[row], first as u32 / 4);
        words.map(|word| if word < self.threshold { 0.0 } else { self.scale })
    }
}

/// The words of [`DRAWN`] columns.
#[inline(always)]
fn draw(stream: &Stream, row: u64, block: u32) -> [u32; DRAWN] {
    const BLOCKS: usize = DRAWN / 4;
    let [first, second, third, fourth] = stream.blocks::<BLOCKS>(row, block);
    let mut words = [0; DRAWN];
    for i in 0..BLOCKS {
        words[4 * i] = first[i] as u32;
        words[4 * i + 1] = second[i] as u32;
        words[4 * i + 2] = third[i] as u32;
        words[4 * i + 3] = fourth[i] as u32;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::oracle::{SHAPES, check, identities};
    use crate::kernels::Kernels;

    #[test]
    fn dropout_gives_exactly_the_mask_of_its_definition() {
        for shape @ [rows, columns] in SHAPES {
            let rows = identities(rows);
            let dropout = Dropout { probability: 0.3, stream: Stream::new(5, 6, 7), rows: &rows };
            check(1e-6, |case| {
                let (x, mut y) = (case.activation(1, &shape), case.output(&shape));
                case.kernels.dropout(&x, &dropout, &mut y);
                let dropped = |i: usize| {
                    let word = dropout.stream.word(rows[i / columns], (i % columns) as u32);
                    word < dropout.threshold()
                };
                let (x, values) = (x.to_vec_f64(), y.to_vec_f64());
                assert!((0..values.len()).all(|i| x[i] == 0.0 || dropped(i) == (values[i] == 0.0)));
                vec![y]
            });
        }
    }

    #[test]
    fn sums_match_the_reference() {
        for shape in SHAPES {
            check(1e-6, |case| {
                let (mut a, b) = (case.activation(1, &shape), case.activation(2, &shape));
                case.kernels.add_assign(&mut a, &b);
                let parameter = case.parameter(3, &[17_000]);
                let squares = case.kernels.sum_of_squares(&[&b, &parameter, &b]);
                vec![a, case.number(squares)]
            });
        }
        assert_eq!(CpuKernels::new(2).sum_of_squares(&[]), 0.0);
    }

    #[test]
    fn squares_beyond_the_range_of_f32_are_summed() {
        let kernels = CpuKernels::new(1);
        let x = kernels.pool().from_slice(&[1e30f32; 100], &[100]);
        assert!((kernels.sum_of_squares(&[&x]) / 1e62 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn casts_round_to_nearest_even_between_all_types() {
        const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::BF16, DType::F16];
        let kernels = CpuKernels::new(2);
        let values: Vec<f32> = (0..40_000).map(|i| (i as f32 - 20_000.0) * 1.7e-3).collect();
        for (from, to) in TYPES.into_iter().flat_map(|from| TYPES.map(|to| (from, to))) {
            let mut source = kernels.pool().empty(from, &[200, 200]);
            source.copy_from_f32(&values);
            let mut target = kernels.pool().empty(to, &[200, 200]);
            kernels.cast(&source, &mut target);
            let mut wanted = kernels.pool().empty(to, &[200, 200]);
            wanted.copy_from_f32(&source.to_vec_f32());
            assert_eq!(target.to_vec_f64(), wanted.to_vec_f64(), "{from} to {to}");
        }
    }

    #[test]
    fn one_value_that_is_not_finite_is_found_wherever_it_stands() {
        let kernels = CpuKernels::new(2);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (at, bad) in [(0, f32::NAN), (40_000, f32::INFINITY), (99_999, f32::NEG_INFINITY)] {
                let mut values = vec![-60_000.0f32; 100_000];
                let mut x = kernels.pool().empty(dtype, &[100_000]);
                x.copy_from_f32(&values);
                assert!(kernels.all_finite(&x));
                values[at] = bad;
                x.copy_from_f32(&values);
                assert!(!kernels.all_finite(&x), "{bad} at {at}");
            }
        }
    }

    #[test]
    fn zero_clears_every_element() {
        for shape in SHAPES {
            check(0.0, |case| {
                let mut a = case.output(&shape);
                case.kernels.zero(&mut a);
                vec![a]
            });
        }
    }
}
