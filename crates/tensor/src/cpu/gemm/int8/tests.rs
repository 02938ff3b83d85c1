//! Quantised linear layers against integers summed one by one, to the bit.

use proptest::prelude::*;

use crate::cpu::CpuKernels;
use crate::cpu::gemm::tests::{paths, random};
use crate::dtype::DType::{self, BF16, F16, F32};
use crate::kernels::{Activation, Kernels};
use crate::reference::ReferenceKernels;
use crate::tensor::{Layout, Tensor};

use super::MOST;

/// Rows, outputs, inputs: nothing, one, primes, tails of tiles and of quads, several blocks of `k`.
const SIZES: [(usize, usize, usize); 16] = [
    (0, 5, 3),
    (5, 0, 3),
    (9, 3, 0),
    (1, 1, 1),
    (1, 33, 2),
    (3, 31, 17),
    (13, 32, 16),
    (14, 33, 15),
    (15, 64, 31),
    (17, 7, 97),
    (29, 65, 33),
    (43, 97, 1537),
    (5, 40, 768),
    (16, 37, 3073),
    (31, 100, 7001),
    (127, 131, 61),
];

/// Rows as integers in `[-127, 127]`, and their scales.
fn quantized(values: &[f32], columns: usize) -> Vec<(Vec<i64>, f32)> {
    let row = |row: &[f32]| {
        let largest = row.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        let inverse = if largest > 1e-36 { 127.0 / largest } else { 0.0 };
        (row.iter().map(|v| (v * inverse).round_ties_even() as i64).collect(), largest / 127.0)
    };
    values.chunks_exact(columns).map(row).collect()
}

fn naive(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Vec<f32> {
    let k = x.columns();
    if k == 0 {
        return (0..x.rows()).flat_map(|_| bias.map_or(vec![0.0; w.rows()], Tensor::to_vec_f32)).collect();
    }
    let (rows, channels) = (quantized(&x.to_vec_f32(), k), quantized(&w.to_vec_f32(), k));
    let bias = bias.map_or(vec![0.0; w.rows()], Tensor::to_vec_f32);
    let element = |(x, x_scale): &(Vec<i64>, f32), (w, w_scale): &(Vec<i64>, f32), bias: f32| {
        let sum: i64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
        sum as f32 * w_scale * x_scale + bias
    };
    rows.iter().flat_map(|x| channels.iter().zip(&bias).map(move |(w, &bias)| element(x, w, bias))).collect()
}

fn linear(kernels: &CpuKernels, x: &Tensor, w: &Tensor, bias: Option<&Tensor>, kind: Activation) -> Tensor {
    let mut y = kernels.pool().empty(F32, &[x.rows(), w.rows()]);
    kernels.linear(x, w, bias, kind, None, &mut y);
    y
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec_f32().into_iter().map(f32::to_bits).collect()
}

fn assert_exact(m: usize, n: usize, k: usize, dtype: DType) {
    for kernels in paths(2) {
        let (x, w) = (random(&kernels, dtype, &[m, k], 1), random(&kernels, dtype, &[n, k], 2));
        let bias = random(&kernels, F32, &[n], 3);
        let packed = kernels.quantize(&w);
        assert_eq!((packed.dtype(), packed.layout(), packed.shape()), (DType::I8, Layout::Packed, w.shape()));
        let name = format!("{} {dtype} {m}x{n}x{k}", kernels.name());
        for bias in [None, Some(&bias)] {
            let expected: Vec<u32> = naive(&x, &w, bias).into_iter().map(f32::to_bits).collect();
            assert!(bits(&linear(&kernels, &x, &packed, bias, Activation::Identity)) == expected, "{name}");
        }
    }
}

#[test]
fn every_path_gives_the_bits_of_integers_summed_one_by_one() {
    for (m, n, k) in SIZES {
        for dtype in [F32, BF16, F16] {
            assert_exact(m, n, k, dtype);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_small_size_gives_the_bits_of_integers_summed_one_by_one(m in 0usize..40, n in 0usize..80, k in 0usize..70) {
        assert_exact(m, n, k, F32);
    }
}

#[test]
fn results_are_those_of_the_reference_within_one_level_of_every_product() {
    let (m, n, k) = (11, 37, 197);
    let reference = ReferenceKernels::new();
    for kernels in paths(2) {
        let (x, w) = (random(&kernels, F32, &[m, k], 1), random(&kernels, F32, &[n, k], 2));
        let exact = |t: &Tensor| reference.pool().from_slice(&t.to_vec_f64(), t.shape());
        let mut expected = reference.pool().zeros(DType::F64, &[m, n]);
        let packed = reference.quantize(&exact(&w));
        reference.linear(&exact(&x), &packed, None, Activation::Gelu, None, &mut expected);
        let y = linear(&kernels, &x, &kernels.quantize(&w), None, Activation::Gelu);
        // Elements half-way between two levels may round either way in f32; a level is some 3/127.
        for (ours, exact) in y.to_vec_f64().into_iter().zip(expected.to_vec_f64()) {
            assert!((ours - exact).abs() < 0.1, "{}: {ours}, not {exact}", kernels.name());
        }
    }
}

#[test]
fn bias_activation_and_output_type_are_those_of_other_linear_layers() {
    let (m, n, k) = (17, 70, 800);
    for kernels in paths(2) {
        let (x, w) = (random(&kernels, F32, &[m, k], 1), random(&kernels, F32, &[n, k], 2));
        let (bias, packed) = (random(&kernels, F32, &[n], 3), kernels.quantize(&w));
        let sums = linear(&kernels, &x, &packed, Some(&bias), Activation::Identity);
        for dtype in [F32, BF16] {
            let (mut y, mut pre) = (kernels.pool().empty(dtype, &[m, n]), kernels.pool().empty(F32, &[m, n]));
            kernels.linear(&x, &packed, Some(&bias), Activation::Relu, Some(&mut pre), &mut y);
            assert_eq!(bits(&pre), bits(&sums));
            let mut expected = kernels.pool().empty(dtype, &[m, n]);
            expected.copy_from_f32(&sums.to_vec_f32().iter().map(|v| v.max(0.0)).collect::<Vec<_>>());
            assert_eq!(y.to_vec_f32(), expected.to_vec_f32());
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_among_neighbours_and_on_any_number_of_threads() {
    let (n, k) = (71, 1031);
    for threads in 1..=3 {
        for kernels in paths(threads) {
            for dtype in [F32, BF16] {
                let (x, w) = (random(&kernels, dtype, &[40, k], 1), random(&kernels, dtype, &[n, k], 2));
                let packed = kernels.quantize(&w);
                let rows = |first: usize, count: usize| {
                    let mut part = kernels.pool().empty(dtype, &[count, k]);
                    part.copy_from_f32(&x.to_vec_f32()[first * k..(first + count) * k]);
                    bits(&linear(&kernels, &part, &packed, None, Activation::Gelu))
                };
                let alone: Vec<u32> = (0..40).flat_map(|row| rows(row, 1)).collect();
                for count in [2, 13, 14, 15, 29, 40] {
                    assert!(rows(0, count) == alone[..count * n], "{} {count} rows", kernels.name());
                }
            }
        }
    }
}

#[test]
fn rows_of_zeros_and_of_next_to_nothing_give_the_bias() {
    for kernels in paths(2) {
        let w = kernels.quantize(&random(&kernels, F32, &[5, 9], 2));
        let bias = random(&kernels, F32, &[5], 3);
        for value in [0f32, -0.0, 1e-40, -1e-38] {
            let x = kernels.pool().from_slice(&[value; 9], &[1, 9]);
            let y = linear(&kernels, &x, &w, Some(&bias), Activation::Identity);
            assert_eq!(y.to_vec_f32(), bias.to_vec_f32(), "{value:e}");
        }
    }
}

#[test]
fn what_is_not_finite_comes_out_as_nan_in_its_row_or_column_alone() {
    const KINDS: [Activation; 5] =
        [Activation::Identity, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Tanh];
    for kernels in paths(2) {
        let (x, w) = (random(&kernels, F32, &[16, 70], 1), random(&kernels, F32, &[40, 70], 2));
        let spoilt = |tensor: &Tensor, row: usize, value: f32| {
            let mut values = tensor.to_vec_f32();
            values[row * 70 + 69] = value;
            kernels.pool().from_slice(&values, tensor.shape())
        };
        for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for kind in KINDS {
                let (bad_x, bad_w) = (spoilt(&x, 15, value), kernels.quantize(&spoilt(&w, 33, value)));
                let good = linear(&kernels, &x, &kernels.quantize(&w), None, kind).to_vec_f32();
                let y = linear(&kernels, &bad_x, &bad_w, None, kind).to_vec_f32();
                for (i, (y, good)) in y.into_iter().zip(good).enumerate() {
                    let wanted = if i / 40 == 15 || i % 40 == 33 { y.is_nan() } else { y == good };
                    assert!(wanted, "{} {kind:?}: element {i} is {y}", kernels.name());
                }
            }
        }
    }
}

#[test]
fn the_longest_sums_do_not_overflow_and_longer_ones_are_not_quantised() {
    for kernels in paths(1) {
        for sign in [1.0f32, -1.0] {
            let x = kernels.pool().from_slice(&vec![sign; MOST], &[1, MOST]);
            let w = kernels.pool().from_slice(&vec![1f32; MOST], &[1, MOST]);
            let y = linear(&kernels, &x, &kernels.quantize(&w), None, Activation::Identity).to_vec_f32();
            assert!((y[0] * sign - MOST as f32).abs() < 1.0, "{}: {}", kernels.name(), y[0]);
        }
        let w = random(&kernels, F32, &[1, MOST + 1], 1);
        assert_eq!(kernels.quantize(&w).dtype(), F32);
    }
}

#[test]
fn a_repeated_product_asks_the_system_for_nothing() {
    for kernels in paths(2) {
        let (x, w) = (random(&kernels, F32, &[90, 300], 1), random(&kernels, F32, &[70, 300], 2));
        let w = kernels.quantize(&w);
        let mut y = kernels.pool().empty(F32, &[90, 70]);
        let mut step = || kernels.linear(&x, &w, None, Activation::Identity, None, &mut y);
        step();
        let warm = kernels.pool().stats().system_allocations;
        step();
        assert_eq!(kernels.pool().stats().system_allocations, warm);
    }
}
