//! The AdamW update.

use super::CpuKernels;
use super::parallel::{Parts, assert_same_shape, for_pieces, parts};
use crate::dtype::{DType, Element};
use crate::kernels::{AdamwStep, AdamwTensor};
use half::{bf16, f16};

/// Elements per piece of work: a megabyte of each stream. The update is bound by memory, and shorter stretches break the
/// prefetcher's streams (16 Ki elements take a tenth longer on two Zen 4 cores; explicit prefetching and non-temporal
/// stores were slower than plain loops).
const PIECE: usize = 256 * 1024;

/// One tensor's elements, and the number of pieces up to its end.
struct Item<'a> {
    parameter: Parts<'a, f32>,
    gradient: &'a [f32],
    first: Parts<'a, f32>,
    second: Parts<'a, f32>,
    copy: Copied<'a>,
    decay: f32,
    start_piece: usize,
    end_piece: usize,
}

enum Copied<'a> {
    None,
    F32(Parts<'a, f32>),
    BF16(Parts<'a, bf16>),
    F16(Parts<'a, f16>),
}

/// The constants of one step.
#[derive(Clone, Copy)]
struct Constants {
    gradient_scale: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    step_size: f32,
    inverse_root_correction: f32,
    eps: f32,
}

impl Constants {
    fn new(step: &AdamwStep) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step.step as f64);
        Self {
            gradient_scale: step.gradient_scale as f32,
            beta1: step.beta1 as f32,
            rest1: (1.0 - step.beta1) as f32,
            beta2: step.beta2 as f32,
            rest2: (1.0 - step.beta2) as f32,
            step_size: (step.lr / correction(step.beta1)) as f32,
            inverse_root_correction: (1.0 / correction(step.beta2).sqrt()) as f32,
            eps: step.eps as f32,
        }
    }
}

/// See [`Kernels::adamw`](crate::Kernels::adamw).
pub(super) fn adamw(kernels: &CpuKernels, tensors: &mut [AdamwTensor], step: &AdamwStep) {
    let constants = Constants::new(step);
    let mut pieces = 0;
    let items: Vec<Item> = tensors
        .iter_mut()
        .map(|tensor| {
            let start_piece = pieces;
            pieces += tensor.parameter.len().div_ceil(PIECE);
            item(tensor, (1.0 - step.lr * tensor.weight_decay) as f32, start_piece..pieces)
        })
        .collect();
    for_pieces(&kernels.team, pieces, 1, |_, piece| {
        let item = &items[items.partition_point(|item| item.end_piece <= piece.start)];
        let start = (piece.start - item.start_piece) * PIECE;
        let range = start..(start + PIECE).min(item.gradient.len());
        // SAFETY: every piece is another range of a tensor, and tensors that are written share no memory.
        unsafe {
            let (p, m, v) =
                (item.parameter.part(range.clone()), item.first.part(range.clone()), item.second.part(range.clone()));
            let g = &item.gradient[range.clone()];
            match &item.copy {
                Copied::None => vectorized!(kernels, update(constants, item.decay, p, g, m, v)),
                Copied::F32(copy) => update_and_copy(kernels, constants, item.decay, p, g, m, v, copy.part(range)),
                Copied::BF16(copy) => update_and_copy(kernels, constants, item.decay, p, g, m, v, copy.part(range)),
                Copied::F16(copy) => update_and_copy(kernels, constants, item.decay, p, g, m, v, copy.part(range)),
            }
        }
    });
}

fn item<'a>(tensor: &'a mut AdamwTensor, decay: f32, pieces: std::ops::Range<usize>) -> Item<'a> {
    assert_same_shape(tensor.parameter, tensor.gradient);
    assert_same_shape(tensor.parameter, tensor.first);
    assert_same_shape(tensor.parameter, tensor.second);
    let copy = match tensor.copy.as_deref_mut() {
        None => Copied::None,
        Some(copy) => {
            assert_same_shape(tensor.parameter, copy);
            match copy.dtype() {
                DType::F32 => Copied::F32(parts(copy)),
                DType::BF16 => Copied::BF16(parts(copy)),
                DType::F16 => Copied::F16(parts(copy)),
                DType::F64 => panic!("f64 tensors belong to the reference kernels"),
                DType::I8 => panic!("{}", crate::tensor::INT8),
            }
        }
    };
    Item {
        parameter: parts(tensor.parameter),
        gradient: tensor.gradient.as_slice(),
        first: parts(tensor.first),
        second: parts(tensor.second),
        copy,
        decay,
        start_piece: pieces.start,
        end_piece: pieces.end,
    }
}

#[inline(always)]
fn update(constants: Constants, decay: f32, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        element(constants, decay, p, *g, m, v);
    }
}

fn update_and_copy<T: Element>(
    kernels: &CpuKernels,
    constants: Constants,
    decay: f32,
    p: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    copy: &mut [T],
) {
    vectorized!(kernels, {
        for ((((p, g), m), v), copy) in p.iter_mut().zip(g).zip(m).zip(v).zip(copy) {
            element(constants, decay, p, *g, m, v);
            *copy = T::from_f32(*p);
        }
    });
}

#[inline(always)]
fn element(k: Constants, decay: f32, p: &mut f32, g: f32, m: &mut f32, v: &mut f32) {
    let g = g * k.gradient_scale;
    *m = f32::mul_add(k.beta1, *m, k.rest1 * g);
    *v = f32::mul_add(k.beta2, *v, k.rest2 * g * g);
    let denominator = f32::mul_add(v.sqrt(), k.inverse_root_correction, k.eps);
    *p = f32::mul_add(*p, decay, -k.step_size * *m / denominator);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::oracle::check;
    use crate::kernels::Kernels;

    #[test]
    fn twenty_steps_match_the_reference() {
        let sizes = [1, 17, 0, 40_001];
        check(1e-6, |case| {
            let make = |seed: u64| sizes.map(|size| case.parameter(seed, &[size]));
            let zeros = || sizes.map(|size| case.kernels.pool().zeros(case.kernels.dtype(), &[size]));
            let (mut parameters, mut firsts, mut seconds) = (make(1), zeros(), zeros());
            for step in 1..=20 {
                let gradients = make(100 + step);
                let all = parameters.iter_mut().zip(&gradients).zip(firsts.iter_mut().zip(&mut seconds));
                let mut tensors: Vec<AdamwTensor> = all
                    .enumerate()
                    .map(|(i, ((parameter, gradient), (first, second)))| AdamwTensor {
                        parameter,
                        gradient,
                        first,
                        second,
                        copy: None,
                        weight_decay: if i % 2 == 0 { 0.0 } else { 0.01 },
                    })
                    .collect();
                let numbers = AdamwStep { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, step, gradient_scale: 0.5 };
                case.kernels.adamw(&mut tensors, &numbers);
            }
            [parameters, firsts, seconds].concat()
        });
    }

    #[test]
    fn the_working_copy_is_the_rounded_parameter() {
        let kernels = CpuKernels::new(2);
        let pool = kernels.pool();
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            let values: Vec<f32> = (0..20_000).map(|i| (i as f32).sin()).collect();
            let mut parameter = pool.from_slice(&values, &[20_000]);
            let gradient = pool.from_slice(&values, &[20_000]);
            let (mut first, mut second) = (pool.zeros(DType::F32, &[20_000]), pool.zeros(DType::F32, &[20_000]));
            let mut copy = pool.zeros(dtype, &[20_000]);
            let tensor = AdamwTensor {
                parameter: &mut parameter,
                gradient: &gradient,
                first: &mut first,
                second: &mut second,
                copy: Some(&mut copy),
                weight_decay: 0.1,
            };
            let step = AdamwStep { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1, gradient_scale: 1.0 };
            kernels.adamw(&mut [tensor], &step);
            let mut rounded = pool.zeros(dtype, &[20_000]);
            kernels.cast(&parameter, &mut rounded);
            assert_eq!(copy.to_vec_f32(), rounded.to_vec_f32());
            assert_ne!(parameter.to_vec_f32(), values);
        }
    }
}
