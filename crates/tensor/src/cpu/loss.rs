//! Losses with their gradients.

use super::CpuKernels;
use super::elementwise::LANES;
use super::math;
use super::parallel::{PIECE, assert_same_shape, for_pieces, parts, rows_per_piece};
use crate::dtype::{DType, Element};
use crate::kernels::LossSum;
use crate::tensor::Tensor;

/// What a row's cross-entropy depends on besides its logits.
#[derive(Clone, Copy)]
struct Target<'a> {
    weights: Option<&'a [f32]>,
    /// Sum of the weights of all classes.
    weight_sum: f64,
    smoothing: f64,
}

/// See [`Kernels::cross_entropy`](crate::Kernels::cross_entropy).
pub(super) fn cross_entropy(
    kernels: &CpuKernels,
    logits: &Tensor,
    targets: &[i32],
    weights: Option<&[f32]>,
    smoothing: f32,
    gradient: Option<(&mut Tensor, f64)>,
) -> LossSum {
    let (rows, classes) = (logits.rows(), logits.columns());
    assert_eq!(targets.len(), rows, "one target for every row");
    assert!(targets.iter().all(|&t| t < classes as i32), "a target is not below the number of classes, {classes}");
    let weight_sum = match weights {
        Some(weights) => {
            assert_eq!(weights.len(), classes, "one weight for every class");
            weights.iter().map(|&w| w as f64).sum()
        }
        None => classes as f64,
    };
    let target = Target { weights, weight_sum, smoothing: smoothing as f64 };
    with_element!(logits.dtype(), T => {
        let values = logits.as_slice::<T>();
        let gradient = gradient.map(|(gradient, scale)| {
            assert_same_shape(logits, gradient);
            (parts::<T>(gradient), scale)
        });
        sum_pieces(kernels, rows, rows_per_piece(classes), |range| {
            let mut total = LossSum::default();
            for row in range {
                let elements = row * classes..(row + 1) * classes;
                // SAFETY: the rows of the pieces are disjoint.
                let gradient = gradient.as_ref().map(|(g, scale)| (unsafe { g.part(elements.clone()) }, *scale));
                match usize::try_from(targets[row]) {
                    Ok(class) => {
                        let loss = target.row(kernels, &values[elements], class, gradient);
                        total = LossSum { sum: total.sum + loss.sum, weight: total.weight + loss.weight };
                    }
                    Err(_) => {
                        if let Some((gradient, _)) = gradient {
                            gradient.fill(T::from_f32(0.0));
                        }
                    }
                }
            }
            total
        })
    })
}

impl Target<'_> {
    fn weight(&self, class: usize) -> f64 {
        self.weights.map_or(1.0, |weights| weights[class] as f64)
    }

    /// The loss of one row: `(1 - ε) w[y] (-log p[y]) + ε/C Σ_c w[c] (-log p[c])`, with weight `w[y]`.
    fn row<T: Element>(
        &self,
        kernels: &CpuKernels,
        logits: &[T],
        class: usize,
        gradient: Option<(&mut [T], f64)>,
    ) -> LossSum {
        let log_sum = vectorized!(kernels, log_sum_exp(logits));
        let (own, spread) = self.shares(logits.len(), class);
        let mut sum = own * (log_sum - logits[class].to_f64());
        if spread > 0.0 {
            let others = logits.iter().enumerate().map(|(c, z)| self.weight(c) * (log_sum - z.to_f64()));
            sum += spread * others.sum::<f64>();
        }
        if let Some((gradient, scale)) = gradient {
            let target = self.target_gradient(logits, class, log_sum, scale);
            let (all, spread) = ((scale * (own + spread * self.weight_sum)) as f32, (scale * spread) as f32);
            vectorized!(kernels, row_gradient(logits, log_sum as f32, all, spread, self.weights, gradient));
            gradient[class] = T::from_f64(target);
        }
        LossSum { sum, weight: self.weight(class) }
    }

    /// `(1 - ε) w[y]` and `ε/C`.
    fn shares(&self, classes: usize, class: usize) -> (f64, f64) {
        ((1.0 - self.smoothing) * self.weight(class), self.smoothing / classes as f64)
    }

    /// The gradient of the target's logit, in `f64`: near 0 it is a difference of near numbers.
    fn target_gradient<T: Element>(&self, logits: &[T], class: usize, log_sum: f64, scale: f64) -> f64 {
        let (own, spread) = self.shares(logits.len(), class);
        let log_p = logits[class].to_f64() - log_sum;
        scale * (own * log_p.exp_m1() + spread * (self.weight_sum * log_p.exp() - self.weight(class)))
    }
}

/// `all p[c] - spread w[c]` for every class: `((1 - ε) w[y] + ε/C Σ w) p[c] - ε/C w[c]`, scaled.
#[inline(always)]
fn row_gradient<T: Element>(
    logits: &[T],
    log_sum: f32,
    all: f32,
    spread: f32,
    weights: Option<&[f32]>,
    gradient: &mut [T],
) {
    match weights {
        Some(weights) if spread != 0.0 => {
            for ((g, z), w) in gradient.iter_mut().zip(logits).zip(weights) {
                *g = T::from_f32(f32::mul_add(all, math::exp(z.to_f32() - log_sum), -spread * w));
            }
        }
        _ => {
            for (g, z) in gradient.iter_mut().zip(logits) {
                *g = T::from_f32(f32::mul_add(all, math::exp(z.to_f32() - log_sum), -spread));
            }
        }
    }
}

/// `log Σ e^z` of a row; NaN when a logit is NaN or +∞.
#[inline(always)]
fn log_sum_exp<T: Element>(logits: &[T]) -> f64 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            let z = chunk[lane].to_f32();
            lanes[lane] = if z > lanes[lane] { z } else { lanes[lane] };
        }
    }
    let largest = lanes.into_iter().chain(rest.iter().map(|z| z.to_f32())).fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0f64; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += math::exp(chunk[lane].to_f32() - largest) as f64;
        }
    }
    for (sum, z) in sums.iter_mut().zip(rest) {
        *sum += math::exp(z.to_f32() - largest) as f64;
    }
    sums.iter().sum::<f64>().ln() + largest as f64
}

/// See [`Kernels::binary_cross_entropy`](crate::Kernels::binary_cross_entropy).
pub(super) fn binary_cross_entropy(
    kernels: &CpuKernels,
    logits: &Tensor,
    targets: &[f32],
    gradient: Option<(&mut Tensor, f64)>,
) -> LossSum {
    // -t log σ(z) - (1 - t) log(1 - σ(z)) = max(z, 0) - t z + log(1 + e^-|z|), with derivative σ(z) - t
    elementwise(kernels, logits, targets, gradient, |z, t| {
        let small = (-z.abs()).exp();
        let sigmoid = if z < 0.0 { small } else { 1.0 } / (1.0 + small);
        let positive = if z < 0.0 { 0.0 } else { z };
        (positive - t * z + small.ln_1p(), sigmoid - t)
    })
}

/// See [`Kernels::squared_error`](crate::Kernels::squared_error).
pub(super) fn squared_error(
    kernels: &CpuKernels,
    outputs: &Tensor,
    targets: &[f32],
    gradient: Option<(&mut Tensor, f64)>,
) -> LossSum {
    elementwise(kernels, outputs, targets, gradient, |y, t| ((y - t) * (y - t), 2.0 * (y - t)))
}

/// The sum of a function of every output and its target, which gives the loss and its derivative.
fn elementwise(
    kernels: &CpuKernels,
    outputs: &Tensor,
    targets: &[f32],
    gradient: Option<(&mut Tensor, f64)>,
    loss: impl Fn(f64, f64) -> (f64, f64) + Sync,
) -> LossSum {
    assert_eq!(targets.len(), outputs.len(), "one target for every output");
    with_element!(outputs.dtype(), T => {
        let values = outputs.as_slice::<T>();
        let gradient = gradient.map(|(gradient, scale)| {
            assert_same_shape(outputs, gradient);
            (parts::<T>(gradient), scale)
        });
        sum_pieces(kernels, values.len(), PIECE, |range| {
            // SAFETY: the ranges of the pieces are disjoint.
            let mut gradient = gradient.as_ref().map(|(g, scale)| (unsafe { g.part(range.clone()) }, *scale));
            let mut sum = 0.0;
            for (i, (value, target)) in values[range.clone()].iter().zip(&targets[range.clone()]).enumerate() {
                let (value, derivative) = loss(value.to_f64(), *target as f64);
                sum += value;
                if let Some((gradient, scale)) = &mut gradient {
                    gradient[i] = T::from_f64(*scale * derivative);
                }
            }
            LossSum { sum, weight: range.len() as f64 }
        })
    })
}

/// Adds, in order, what `work` gives for pieces of `grain` that cover `0..count`.
fn sum_pieces(
    kernels: &CpuKernels,
    count: usize,
    grain: usize,
    work: impl Fn(std::ops::Range<usize>) -> LossSum + Sync,
) -> LossSum {
    let mut partial = kernels.pool.empty(DType::F64, &[count.div_ceil(grain), 2]);
    let sums = parts::<f64>(&mut partial);
    for_pieces(&kernels.team, count, grain, |_, range| {
        let piece = range.start / grain;
        let loss = work(range);
        // SAFETY: every piece has its own two elements.
        unsafe { sums.part(2 * piece..2 * piece + 2) }.copy_from_slice(&[loss.sum, loss.weight]);
    });
    partial
        .as_slice::<f64>()
        .chunks_exact(2)
        .fold(LossSum::default(), |total, piece| LossSum { sum: total.sum + piece[0], weight: total.weight + piece[1] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::oracle::{SHAPES, check};
    use crate::kernels::Kernels;

    #[test]
    fn cross_entropy_matches_the_reference_with_and_without_its_options() {
        for shape @ [rows, classes] in SHAPES {
            let targets: Vec<i32> =
                (0..rows).map(|i| if i % 5 == 4 { -100 } else { (i * 7 % classes) as i32 }).collect();
            let weights: Vec<f32> = (0..classes).map(|c| 0.5 + (c % 7) as f32 * 0.25).collect();
            for (weights, smoothing) in [(None, 0.0), (Some(&weights[..]), 0.0), (None, 0.1), (Some(&weights[..]), 0.1)]
            {
                check(2e-6, |case| {
                    let (logits, mut gradient) = (case.activation(1, &shape), case.output(&shape));
                    let given = Some((&mut gradient, 0.7));
                    let loss = case.kernels.cross_entropy(&logits, &targets, weights, smoothing, given);
                    let alone = case.kernels.cross_entropy(&logits, &targets, weights, smoothing, None);
                    assert_eq!(alone, loss);
                    vec![case.number(loss.sum), case.number(loss.weight), gradient]
                });
            }
        }
    }

    #[test]
    fn elementwise_losses_match_the_reference() {
        for shape @ [rows, columns] in SHAPES {
            let targets: Vec<f32> = (0..rows * columns).map(|i| (i % 3) as f32 * 0.5).collect();
            check(1e-6, |case| {
                let logits = case.activation(1, &shape);
                let (mut binary, mut squared) = (case.output(&shape), case.output(&shape));
                let a = case.kernels.binary_cross_entropy(&logits, &targets, Some((&mut binary, 0.3)));
                let b = case.kernels.squared_error(&logits, &targets, Some((&mut squared, 0.3)));
                vec![case.number(a.sum), case.number(a.weight), case.number(b.sum), binary, squared]
            });
        }
    }

    #[test]
    fn extreme_logits_give_finite_losses_and_gradients() {
        let kernels = CpuKernels::new(1);
        let logits = kernels.pool.from_slice(&[3e38f32, -3e38, 0.0, 100.0, -100.0, 0.0], &[2, 3]);
        let mut gradient = kernels.pool.zeros(DType::F32, &[2, 3]);
        let loss = kernels.cross_entropy(&logits, &[0, 1], None, 0.0, Some((&mut gradient, 1.0)));
        assert_eq!((loss.sum, loss.weight), (200.0, 2.0));
        assert_eq!(gradient.to_vec_f32(), [0.0, 0.0, 0.0, 1.0, -1.0, 3.8e-44]);
        let loss = kernels.binary_cross_entropy(&logits, &[1.0, 0.0, 0.5, 1.0, 1.0, 0.5], None);
        assert!((loss.sum - 100.0 - 2.0 * 2f64.ln()).abs() < 1e-9, "{loss:?}");
    }

    #[test]
    fn a_logit_that_is_not_a_number_makes_the_sum_not_a_number() {
        let kernels = CpuKernels::new(1);
        for (at, bad) in [(0, f32::NAN), (39, f32::NAN), (1, f32::INFINITY)] {
            let mut values = [0.5f32; 40];
            values[at] = bad;
            let logits = kernels.pool.from_slice(&values, &[1, 40]);
            let mut gradient = kernels.pool.zeros(DType::F32, &[1, 40]);
            let loss = kernels.cross_entropy(&logits, &[3], None, 0.1, Some((&mut gradient, 1.0)));
            assert!(loss.sum.is_nan(), "{bad} at {at}: {loss:?}");
        }
        let logits = kernels.pool.from_slice(&[f32::NAN], &[1, 1]);
        assert!(kernels.binary_cross_entropy(&logits, &[1.0], None).sum.is_nan());
        assert!(kernels.squared_error(&logits, &[1.0], None).sum.is_nan());
    }
}
