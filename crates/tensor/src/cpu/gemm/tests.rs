//! Products against a naive triple loop in `f64`, and the promises about bits.

use super::*;
use crate::dtype::DType::{self, BF16, F16, F32};
use crate::random::Stream;
use kernel::{MR, NR};

/// Kernels for every path this machine has, the portable one for narrower vectors too.
pub fn paths(threads: usize) -> Vec<CpuKernels> {
    let mut all = vec![CpuKernels::with_path(threads, Path::Portable)];
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = pulp::x86::V3::try_new() {
        all.push(CpuKernels { arch: pulp::Arch::V3(avx2), ..CpuKernels::with_path(threads, Path::Portable) });
    }
    if let best @ Path::Avx512 { .. } = Path::detect() {
        all.push(CpuKernels::with_path(threads, Path::Avx512 { pairs: false, quads: false }));
        all.push(CpuKernels::with_path(threads, best));
    }
    all
}

pub fn random(kernels: &CpuKernels, dtype: DType, shape: &[usize], site: u32) -> Tensor {
    let stream = Stream::new(1, 0, site);
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| stream.normal(i as u64, 0) as f32).collect();
    let mut tensor = kernels.pool.empty(dtype, shape);
    tensor.copy_from_f32(&values);
    tensor
}

/// `Σ_k a[i, k] b[j, k]` and `Σ_k |a[i, k] b[j, k]|`, from which the bound of a rounded sum follows.
fn naive(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<(f64, f64)> {
    let row = |s: &[f64], i: usize| -> Vec<f64> { s[i * k..(i + 1) * k].to_vec() };
    let element = |i: usize, j: usize| {
        let products = row(a, i).into_iter().zip(row(b, j)).map(|(x, y)| x * y).collect::<Vec<_>>();
        (products.iter().sum(), products.iter().map(|p| p.abs()).sum())
    };
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
}

fn transposed(values: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
}

fn assert_close(name: &str, got: &Tensor, expected: &[(f64, f64)]) {
    let unit = match got.dtype() {
        BF16 => 2f64.powi(-8),
        F16 => 2f64.powi(-11),
        _ => 0.0,
    };
    for (i, (got, (sum, size))) in got.to_vec_f64().into_iter().zip(expected).enumerate() {
        let bound = 1e-6 * (size + 1.0) + unit * sum.abs() * 1.01;
        assert!((got - sum).abs() <= bound, "{name}: element {i} is {got}, expected {sum}");
    }
}

const SIZES: [(usize, usize, usize); 16] = [
    (0, 5, 3),
    (1, 1, 1),
    (1, 33, 1),
    (2, 2, 768),
    (3, 31, 17),
    (13, 32, 16),
    (14, 33, 15),
    (15, 64, 31),
    (17, 7, 97),
    (29, 65, 33),
    (31, 100, 767),
    (5, 40, 768),
    (16, 37, 769),
    (43, 97, 1537),
    (113, 131, 61),
    (9, 3, 0),
];

#[test]
fn linear_and_its_gradients_equal_the_naive_product() {
    for kernels in paths(2) {
        for (m, n, k) in SIZES {
            for dtype in [F32, BF16, F16] {
                let (x, w) = (random(&kernels, dtype, &[m, k], 1), random(&kernels, dtype, &[n, k], 2));
                let dy = random(&kernels, dtype, &[m, n], 3);
                let (xs, ws, dys) = (x.to_vec_f64(), w.to_vec_f64(), dy.to_vec_f64());
                let name = format!("{} {dtype} {m}x{n}x{k}", super::name(&kernels));

                let mut y = kernels.pool.empty(dtype, &[m, n]);
                linear(&kernels, &x, &w, None, Activation::Identity, None, &mut y);
                assert_close(&format!("y {name}"), &y, &naive(&xs, &ws, m, n, k));
                let mut packed = kernels.pool.empty(dtype, &[m, n]);
                linear(&kernels, &x, &prepack(&kernels, &w), None, Activation::Identity, None, &mut packed);
                assert_eq!(packed.to_vec_f32(), y.to_vec_f32(), "prepacked {name}");

                let mut dx = kernels.pool.empty(dtype, &[m, k]);
                linear_input_gradient(&kernels, &dy, &w, &mut dx, false);
                assert_close(&format!("dx {name}"), &dx, &naive(&dys, &transposed(&ws, n, k), m, k, n));
                let once = dx.to_vec_f32();
                linear_input_gradient(&kernels, &dy, &w, &mut dx, true);
                if dtype == F32 {
                    assert_eq!(dx.to_vec_f32(), once.iter().map(|v| v + v).collect::<Vec<_>>(), "dx += {name}");
                }

                let mut dw = kernels.pool.zeros(F32, &[n, k]);
                linear_weight_gradient(&kernels, &dy, &x, &mut dw, false);
                let expected = naive(&transposed(&dys, m, n), &transposed(&xs, m, k), n, k, m);
                assert_close(&format!("dw {name}"), &dw, &expected);
                linear_weight_gradient(&kernels, &dy, &x, &mut dw, true);
                let twice: Vec<(f64, f64)> = expected.iter().map(|(s, a)| (2.0 * s, 2.0 * a)).collect();
                assert_close(&format!("dw += {name}"), &dw, &twice);
            }
        }
    }
}

#[test]
fn types_mix_freely() {
    let (m, n, k) = (19, 45, 91);
    for kernels in paths(2) {
        for (tx, tw, ty) in [(F32, BF16, F32), (BF16, F32, BF16), (BF16, BF16, F32), (F16, BF16, F32), (F32, F16, BF16)]
        {
            let (x, w) = (random(&kernels, tx, &[m, k], 1), random(&kernels, tw, &[n, k], 2));
            let expected = naive(&x.to_vec_f64(), &w.to_vec_f64(), m, n, k);
            for w in [w.clone(), prepack(&kernels, &w)] {
                let mut y = kernels.pool.empty(ty, &[m, n]);
                linear(&kernels, &x, &w, None, Activation::Identity, None, &mut y);
                assert_close(&format!("{} {tx}x{tw}->{ty} {:?}", super::name(&kernels), w.layout()), &y, &expected);
            }
        }
    }
}

#[test]
fn bias_and_activation_are_applied_once_to_the_whole_sum() {
    type Function = fn(f64) -> f64;
    let functions: [(Activation, Function); 3] =
        [(Activation::Identity, |v| v), (Activation::Relu, |v| v.max(0.0)), (Activation::Tanh, f64::tanh)];
    for kernels in paths(2) {
        for k in [5, 800, 1700] {
            for (dtype, tolerance) in [(F32, 1e-6), (BF16, 1e-2)] {
                let (m, n) = (17, 70);
                let (x, w) = (random(&kernels, dtype, &[m, k], 1), random(&kernels, dtype, &[n, k], 2));
                let bias = random(&kernels, F32, &[n], 3);
                let sums = naive(&x.to_vec_f64(), &w.to_vec_f64(), m, n, k);
                for (activation, function) in functions {
                    let (mut y, mut pre) = (kernels.pool.empty(dtype, &[m, n]), kernels.pool.empty(dtype, &[m, n]));
                    linear(&kernels, &x, &w, Some(&bias), activation, Some(&mut pre), &mut y);
                    for (i, (sum, size)) in sums.iter().enumerate() {
                        let value = sum + bias.to_vec_f64()[i % n];
                        for (got, expected) in [(&pre, value), (&y, function(value))] {
                            let got = got.to_vec_f64()[i];
                            let bound = tolerance * (1.0 + value.abs()) + 1e-6 * size;
                            assert!((got - expected).abs() < bound, "{activation:?} {dtype} {k}: {got} {expected}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_any_neighbours() {
    let (n, k) = (71, 1031);
    for kernels in paths(2) {
        for dtype in [F32, BF16] {
            let (x, w) = (random(&kernels, dtype, &[40, k], 1), random(&kernels, dtype, &[n, k], 2));
            let bias = random(&kernels, F32, &[n], 3);
            let rows = |first: usize, count: usize| -> Vec<f32> {
                let values = &x.to_vec_f32()[first * k..(first + count) * k];
                let mut part = kernels.pool.empty(dtype, &[count, k]);
                part.copy_from_f32(values);
                let mut y = kernels.pool.empty(dtype, &[count, n]);
                linear(&kernels, &part, &w, Some(&bias), Activation::Gelu, None, &mut y);
                y.to_vec_f32()
            };
            let alone: Vec<f32> = (0..40).flat_map(|row| rows(row, 1)).collect();
            for count in 1..=40 {
                assert_eq!(rows(0, count), alone[..count * n], "{} {dtype} {count} rows", super::name(&kernels));
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (m, n, k) = (5 * MR + 3, 3 * NR + 7, 900);
    for dtype in [F32, BF16] {
        let results = |threads: usize| -> Vec<Vec<f32>> {
            let run = |kernels: &CpuKernels| {
                let (x, w) = (random(kernels, dtype, &[m, k], 1), random(kernels, dtype, &[n, k], 2));
                let mut y = kernels.pool.empty(dtype, &[m, n]);
                linear(kernels, &x, &w, None, Activation::GeluTanh, None, &mut y);
                let mut dx = kernels.pool.empty(dtype, &[m, k]);
                linear_input_gradient(kernels, &y, &w, &mut dx, false);
                let mut dw = kernels.pool.empty(F32, &[n, k]);
                linear_weight_gradient(kernels, &y, &x, &mut dw, false);
                [y, dx, dw].map(|t| t.to_vec_f32()).concat()
            };
            paths(threads).iter().map(run).collect()
        };
        let one = results(1);
        assert_eq!(one, results(2), "{dtype}");
        assert_eq!(one, results(3), "{dtype}");
    }
}

#[test]
fn a_repeated_product_asks_the_system_for_nothing() {
    for kernels in paths(2) {
        let (x, w) = (random(&kernels, F32, &[90, 300], 1), random(&kernels, F32, &[70, 300], 2));
        let mut y = kernels.pool.empty(F32, &[90, 70]);
        let mut step = || linear(&kernels, &x, &w, None, Activation::Identity, None, &mut y);
        step();
        let warm = kernels.pool.stats().system_allocations;
        step();
        assert_eq!(kernels.pool.stats().system_allocations, warm);
    }
}
