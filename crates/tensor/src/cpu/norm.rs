//! Layer normalisation fused with what stands before it, and its gradient.

use super::CpuKernels;
use super::elementwise::{LANES, Mask};
use super::parallel::{Parts, assert_same_shape, assert_vector, for_pieces, parts, rows_per_piece};
use crate::dtype::{DType, Element};
use crate::kernels::{Dropout, Norm, NormSaved};
use crate::tensor::Tensor;

/// Rows whose contributions to the gradients of `gamma` and `beta` are summed before they join the others: fixed, so
/// that the order of the sum does not depend on the number of threads.
const ROWS_PER_PARTIAL: usize = 32;

/// The parameters of a norm, and where its rows go.
pub(super) struct RowNorm<'a, T> {
    gamma: &'a [f32],
    beta: &'a [f32],
    eps: f64,
    saved: Option<(Parts<'a, T>, Parts<'a, f32>)>,
    y: Parts<'a, T>,
}

impl<'a, T: Element> RowNorm<'a, T> {
    pub fn new(norm: &Norm<'a>, saved: Option<NormSaved<'a>>, y: &'a mut Tensor) -> Self {
        let (rows, columns) = (y.rows(), y.columns());
        assert_vector(norm.gamma, columns);
        assert_vector(norm.beta, columns);
        let saved = saved.map(|saved| {
            assert_same_shape(saved.normalized, y);
            assert_eq!(saved.inverse_deviation.len(), rows, "one deviation for every row");
            (parts::<T>(saved.normalized), parts::<f32>(saved.inverse_deviation))
        });
        Self { gamma: norm.gamma.as_slice(), beta: norm.beta.as_slice(), eps: norm.eps, saved, y: parts::<T>(y) }
    }

    /// Normalises one row, whose input is `sum`.
    ///
    /// # Safety
    /// No other thread works on this row.
    #[inline(always)]
    pub unsafe fn write(&self, row: usize, sum: &[f32]) {
        let columns = sum.len();
        let elements = row * columns..(row + 1) * columns;
        let mean = reduce(sum, |v| v) / columns as f32;
        let variance = reduce(sum, |v| (v - mean) * (v - mean)) / columns as f32;
        let inverse = (1.0 / (variance as f64 + self.eps).sqrt()) as f32;
        let (gamma, beta) = (&self.gamma[..columns], &self.beta[..columns]);
        // SAFETY: the row is this thread's, by the caller's promise.
        let y = unsafe { self.y.part(elements.clone()) };
        match &self.saved {
            Some((normalized, deviation)) => {
                // SAFETY: as above.
                let (normalized, deviation) = unsafe { (normalized.part(elements), deviation.part(row..row + 1)) };
                deviation[0] = inverse;
                for c in 0..columns {
                    let value = (sum[c] - mean) * inverse;
                    normalized[c] = T::from_f32(value);
                    y[c] = T::from_f32(f32::mul_add(value, gamma[c], beta[c]));
                }
            }
            None => {
                for c in 0..columns {
                    y[c] = T::from_f32(f32::mul_add((sum[c] - mean) * inverse, gamma[c], beta[c]));
                }
            }
        }
    }
}

/// `Σ f(value)` in [`LANES`] interleaved partial sums.
#[inline(always)]
pub(super) fn reduce(values: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f(value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += f(value);
    }
    sum_lanes(lanes)
}

/// The sum of the lanes, by halves.
#[inline(always)]
pub(super) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// See [`Kernels::add_norm`](crate::Kernels::add_norm).
pub(super) fn add_norm(
    kernels: &CpuKernels,
    x: &Tensor,
    dropout: Option<&Dropout>,
    residual: Option<&Tensor>,
    norm: &Norm,
    saved: Option<NormSaved>,
    y: &mut Tensor,
) {
    assert_same_shape(x, y);
    if let Some(residual) = residual {
        assert_same_shape(x, residual);
    }
    let (rows, columns) = (x.rows(), x.columns());
    let mask = dropout.map(|dropout| Mask::new(dropout, rows));
    let mut scratch = kernels.pool.empty(DType::F32, &[kernels.team.threads(), columns]);
    let scratch = parts::<f32>(&mut scratch);
    with_element!(x.dtype(), T => {
        let (x, residual) = (x.as_slice::<T>(), residual.map(|r| r.as_slice::<T>()));
        let output = RowNorm::<T>::new(norm, saved, y);
        for_pieces(&kernels.team, rows, rows_per_piece(columns), |worker, range| {
            // SAFETY: every worker has its own row of the scratch memory.
            let sum = unsafe { scratch.part(worker * columns..(worker + 1) * columns) };
            vectorized!(kernels, {
                for row in range {
                    let elements = row * columns..(row + 1) * columns;
                    let residual = residual.map(|r| &r[elements.clone()]);
                    branch_sum(&x[elements], mask.as_ref().map(|mask| (mask, row)), residual, sum);
                    // SAFETY: the rows of the pieces are disjoint.
                    unsafe { output.write(row, sum) };
                }
            });
        });
    });
}

/// `sum = residual + dropout(x)` for one row.
#[inline(always)]
fn branch_sum<T: Element>(x: &[T], mask: Option<(&Mask, usize)>, residual: Option<&[T]>, sum: &mut [f32]) {
    match mask {
        Some((mask, row)) => mask.for_each_factor(row, x.len(), |first, factors| {
            let columns = first..first + factors.len();
            for ((sum, x), factor) in sum[columns.clone()].iter_mut().zip(&x[columns]).zip(factors) {
                *sum = x.to_f32() * factor;
            }
        }),
        None => sum.iter_mut().zip(x).for_each(|(sum, x)| *sum = x.to_f32()),
    }
    if let Some(residual) = residual {
        sum.iter_mut().zip(residual).for_each(|(sum, r)| *sum += r.to_f32());
    }
}

/// See [`Kernels::norm_gradient`](crate::Kernels::norm_gradient): `(dy, normalized, inverse_deviation, gamma,
/// dropout)` and `(dgamma, dbeta, accumulate)`.
pub(super) fn norm_gradient(
    kernels: &CpuKernels,
    (dy, normalized, inverse_deviation, gamma, dropout): (&Tensor, &Tensor, &Tensor, &Tensor, Option<&Dropout>),
    dsum: &mut Tensor,
    dx: Option<&mut Tensor>,
    (dgamma, dbeta, accumulate): (&mut Tensor, &mut Tensor, bool),
) {
    let (rows, columns) = (dy.rows(), dy.columns());
    assert_same_shape(dy, normalized);
    assert_same_shape(dy, dsum);
    if let Some(dx) = &dx {
        assert_same_shape(dy, dx);
    }
    assert_eq!(inverse_deviation.len(), rows, "one deviation for every row");
    assert_vector(gamma, columns);
    let (inverse, gamma) = (inverse_deviation.as_slice::<f32>(), gamma.as_slice::<f32>());
    let mask = dropout.map(|dropout| Mask::new(dropout, rows));
    let partials = rows.div_ceil(ROWS_PER_PARTIAL);
    let mut scratch = kernels.pool.empty(DType::F32, &[partials, 2 * columns]);
    let mut exact = kernels.pool.empty(DType::F32, &[kernels.team.threads(), columns]);
    with_element!(dy.dtype(), T => {
        let (dy, normalized) = (dy.as_slice::<T>(), normalized.as_slice::<T>());
        let (dsum, dx) = (parts::<T>(dsum), dx.map(parts::<T>));
        let (scratch, exact) = (parts::<f32>(&mut scratch), parts::<f32>(&mut exact));
        for_pieces(&kernels.team, rows, ROWS_PER_PARTIAL, |worker, range| {
            let partial = range.start / ROWS_PER_PARTIAL;
            // SAFETY: every piece has its own partial sums, and every worker its own row of scratch memory.
            let (sums, exact) = unsafe {
                let sums = scratch.part(partial * 2 * columns..(partial + 1) * 2 * columns);
                (sums, exact.part(worker * columns..(worker + 1) * columns))
            };
            vectorized!(kernels, {
                sums.fill(0.0);
                let (dgamma, dbeta) = sums.split_at_mut(columns);
                for row in range {
                    let elements = row * columns..(row + 1) * columns;
                    // SAFETY: the rows of the pieces are disjoint.
                    let (dsum, dx) = unsafe { (dsum.part(elements.clone()), dx.as_ref().map(|dx| dx.part(elements.clone()))) };
                    let (dy, normalized) = (&dy[elements.clone()], &normalized[elements]);
                    row_gradient(dy, normalized, inverse[row], gamma, exact, dgamma, dbeta);
                    dsum.iter_mut().zip(&*exact).for_each(|(d, &e)| *d = T::from_f32(e));
                    match (dx, &mask) {
                        (Some(dx), Some(mask)) => mask.apply(row, exact, dx),
                        (Some(dx), None) => dx.copy_from_slice(dsum),
                        (None, _) => {}
                    }
                }
            });
        });
    });
    assert_vector(dgamma, columns);
    assert_vector(dbeta, columns);
    let (dgamma, dbeta) = (dgamma.as_mut_slice::<f32>(), dbeta.as_mut_slice::<f32>());
    if !accumulate {
        dgamma.fill(0.0);
        dbeta.fill(0.0);
    }
    vectorized!(kernels, {
        for sums in scratch.as_slice::<f32>().chunks_exact(2 * columns) {
            let (gammas, betas) = sums.split_at(columns);
            dgamma.iter_mut().zip(gammas).for_each(|(d, s)| *d += s);
            dbeta.iter_mut().zip(betas).for_each(|(d, s)| *d += s);
        }
    });
}

/// The gradient of one row's input; adds the row's share to those of `gamma` and `beta`.
#[inline(always)]
fn row_gradient<T: Element>(
    dy: &[T],
    normalized: &[T],
    inverse: f32,
    gamma: &[f32],
    dsum: &mut [f32],
    dgamma: &mut [f32],
    dbeta: &mut [f32],
) {
    let columns = dy.len();
    let (mut plain, mut weighted) = ([0.0f32; LANES], [0.0f32; LANES]);
    let whole = columns / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let (dy, normalized) = (&dy[first..first + LANES], &normalized[first..first + LANES]);
        let gamma = &gamma[first..first + LANES];
        for lane in 0..LANES {
            let g = dy[lane].to_f32() * gamma[lane];
            plain[lane] += g;
            weighted[lane] = f32::mul_add(g, normalized[lane].to_f32(), weighted[lane]);
        }
    }
    for c in whole..columns {
        let g = dy[c].to_f32() * gamma[c];
        plain[c - whole] += g;
        weighted[c - whole] = f32::mul_add(g, normalized[c].to_f32(), weighted[c - whole]);
    }
    let (mean, slope) = (sum_lanes(plain) / columns as f32, sum_lanes(weighted) / columns as f32);
    let (normalized, gamma, dsum) = (&normalized[..columns], &gamma[..columns], &mut dsum[..columns]);
    let (dgamma, dbeta) = (&mut dgamma[..columns], &mut dbeta[..columns]);
    for c in 0..columns {
        let (dy, normalized) = (dy[c].to_f32(), normalized[c].to_f32());
        dgamma[c] = f32::mul_add(dy, normalized, dgamma[c]);
        dbeta[c] += dy;
        dsum[c] = inverse * (f32::mul_add(dy, gamma[c], -mean) - normalized * slope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::oracle::{SHAPES, check, identities};
    use crate::random::Stream;

    #[test]
    fn add_norm_matches_the_reference_with_and_without_its_options() {
        for shape @ [rows, columns] in SHAPES {
            let ids = identities(rows);
            let dropout = Dropout { probability: 0.25, stream: Stream::new(5, 6, 7), rows: &ids };
            for (dropout, with_residual) in
                [(None, false), (None, true), (Some(&dropout), false), (Some(&dropout), true)]
            {
                check(1e-5, |case| {
                    let (x, residual) = (case.activation(1, &shape), case.activation(2, &shape));
                    let residual = with_residual.then_some(&residual);
                    let (gamma, beta) = (case.parameter(3, &[columns]), case.parameter(4, &[columns]));
                    let norm = Norm { gamma: &gamma, beta: &beta, eps: 1e-3 };
                    let (mut y, mut normalized) = (case.output(&shape), case.output(&shape));
                    let mut inverse = case.parameter_output(&[rows]);
                    let saved = NormSaved { normalized: &mut normalized, inverse_deviation: &mut inverse };
                    case.kernels.add_norm(&x, dropout, residual, &norm, Some(saved), &mut y);
                    let mut unsaved = case.output(&shape);
                    case.kernels.add_norm(&x, dropout, residual, &norm, None, &mut unsaved);
                    assert_eq!(unsaved.to_vec_f64(), y.to_vec_f64());
                    vec![y, normalized, inverse]
                });
            }
        }
    }

    #[test]
    fn a_large_mean_does_not_spoil_the_variance() {
        check(2e-4, |case| {
            let mut x = case.output(&[1, 256]);
            x.copy_from_f32(&(0..256).map(|i| 1024.0 + 8.0 * (i % 8) as f32).collect::<Vec<_>>());
            let (gamma, beta) = (case.parameter(3, &[256]), case.parameter(4, &[256]));
            let mut y = case.output(&[1, 256]);
            case.kernels.add_norm(&x, None, None, &Norm { gamma: &gamma, beta: &beta, eps: 1e-12 }, None, &mut y);
            vec![y]
        });
    }

    #[test]
    fn gradients_match_the_reference_written_and_added() {
        for shape @ [rows, columns] in SHAPES {
            let ids = identities(rows);
            let dropout = Dropout { probability: 0.25, stream: Stream::new(5, 6, 7), rows: &ids };
            for (dropout, accumulate) in [(None, false), (Some(&dropout), true)] {
                check(2e-5, |case| {
                    let (dy, normalized) = (case.activation(1, &shape), case.activation(2, &shape));
                    let (inverse, gamma) = (case.parameter(3, &[rows]), case.parameter(4, &[columns]));
                    let (mut dsum, mut dx) = (case.output(&shape), case.output(&shape));
                    let sums = |seed| {
                        if accumulate { case.parameter(seed, &[columns]) } else { case.parameter_output(&[columns]) }
                    };
                    let (mut dgamma, mut dbeta) = (sums(5), sums(6));
                    case.kernels.norm_gradient(
                        &dy,
                        &normalized,
                        &inverse,
                        &gamma,
                        dropout,
                        &mut dsum,
                        Some(&mut dx),
                        &mut dgamma,
                        &mut dbeta,
                        accumulate,
                    );
                    vec![dsum, dx, dgamma, dbeta]
                });
            }
        }
    }

    #[test]
    fn a_row_gives_the_same_bits_alone_and_among_others() {
        let kernels = CpuKernels::new(2);
        let all: Vec<f32> = (0..50 * 97).map(|i| ((i * 7919) % 1013) as f32 * 0.01 - 5.0).collect();
        let parameter = kernels.pool.from_slice(&all[..97], &[97]);
        let norm = Norm { gamma: &parameter, beta: &parameter, eps: 1e-5 };
        let run = |values: &[f32]| {
            let x = kernels.pool.from_slice(values, &[values.len() / 97, 97]);
            let mut y = kernels.pool.empty(DType::F32, x.shape());
            add_norm(&kernels, &x, None, Some(&x), &norm, None, &mut y);
            y.to_vec_f32()
        };
        let together = run(&all);
        assert!((0..50).all(|row| run(&all[row * 97..(row + 1) * 97]) == together[row * 97..(row + 1) * 97]));
    }
}
