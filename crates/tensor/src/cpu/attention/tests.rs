//! Tiles against the formula, on every path, and the promises about bits.

use super::naive::Naive;
use super::*;
use crate::cpu::gemm::tests::{paths, random};
use crate::dtype::DType::{self, BF16, F32};
use crate::random::Stream;

const ENCODER: AttentionShape = AttentionShape { query_heads: 2, key_value_heads: 2, head_dim: 64, causal: false };

/// Empty sequences, one token, primes, whole and broken tiles, more than one tile of queries and of keys.
const OFFSETS: [u32; 11] = [0, 0, 1, 4, 4, 35, 67, 123, 180, 308, 439];

fn shapes() -> Vec<AttentionShape> {
    vec![
        ENCODER,
        AttentionShape { head_dim: 32, ..ENCODER },
        AttentionShape { head_dim: 20, causal: true, ..ENCODER },
        AttentionShape { query_heads: 4, key_value_heads: 2, head_dim: 72, causal: true },
        AttentionShape { query_heads: 3, key_value_heads: 1, head_dim: 1, causal: false },
    ]
}

/// Output, logarithms and input gradient for random input.
fn run(
    kernels: &CpuKernels,
    shape: AttentionShape,
    qkv: &Tensor,
    dy: &Tensor,
    offsets: &[u32],
    dropout: Option<&Dropout>,
) -> [Tensor; 3] {
    let tokens = qkv.rows();
    let mut y = kernels.pool.empty(qkv.dtype(), &[tokens, shape.output_columns()]);
    let mut log_sum = kernels.pool.empty(F32, &[tokens, shape.query_heads]);
    attention(kernels, shape, qkv, offsets, dropout, &mut y, &mut log_sum);
    let mut dqkv = kernels.pool.empty(qkv.dtype(), qkv.shape());
    attention_gradient(kernels, shape, qkv, &y, &log_sum, offsets, dropout, dy, &mut dqkv);
    [y, log_sum, dqkv]
}

fn assert_close(name: &str, got: &Tensor, expected: &[f64], tolerance: f64) {
    for (i, (got, expected)) in got.to_vec_f64().into_iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= tolerance * (1.0 + expected.abs()), "{name}: element {i}: {got}, {expected}");
    }
}

#[test]
fn output_and_gradient_equal_the_formula() {
    let tokens = OFFSETS[OFFSETS.len() - 1] as usize;
    let rows: Vec<u64> = (0..tokens as u64).map(|i| i * 7 + 3).collect();
    let dropout = Dropout { probability: 0.25, stream: Stream::new(5, 6, 7), rows: &rows };
    for kernels in paths(2) {
        for shape in shapes() {
            for dropout in [None, Some(&dropout)] {
                for (dtype, tolerance) in [(F32, 2e-5), (BF16, 3e-2)] {
                    let qkv = random(&kernels, dtype, &[tokens, shape.input_columns()], 1);
                    let dy = random(&kernels, dtype, &[tokens, shape.output_columns()], 2);
                    let naive = Naive { shape, qkv: &qkv.to_vec_f64(), offsets: &OFFSETS, dropout };
                    let [y, log_sum, dqkv] = run(&kernels, shape, &qkv, &dy, &OFFSETS, dropout);
                    let (expected, expected_log_sum) = naive.forward();
                    let name = format!("{} {dtype} {shape:?} {}", crate::cpu::gemm::name(&kernels), dropout.is_some());
                    assert_close(&format!("y {name}"), &y, &expected, tolerance);
                    assert_close(&format!("log_sum {name}"), &log_sum, &expected_log_sum, 2e-5);
                    assert_close(&format!("dqkv {name}"), &dqkv, &naive.backward(&dy.to_vec_f64()), tolerance);
                }
            }
        }
    }
}

fn bits(tensors: [Tensor; 3]) -> Vec<f32> {
    tensors.map(|t| t.to_vec_f32()).concat()
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for shape in shapes() {
        let results = |threads: usize| -> Vec<Vec<f32>> {
            let run = |kernels: &CpuKernels| {
                let of = |dtype: DType| {
                    let qkv = random(kernels, dtype, &[439, shape.input_columns()], 1);
                    let dy = random(kernels, dtype, &[439, shape.output_columns()], 2);
                    bits(run(kernels, shape, &qkv, &dy, &OFFSETS, None))
                };
                [F32, BF16].map(of).concat()
            };
            paths(threads).iter().map(run).collect()
        };
        let one = results(1);
        assert_eq!(one, results(2));
        assert_eq!(one, results(3));
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_among_any_neighbours() {
    for (kernels, dtype) in paths(2).iter().flat_map(|kernels| [(kernels, F32), (kernels, BF16)]) {
        let part = |t: &Tensor, rows: Range<usize>| {
            let columns = t.columns();
            let mut part = kernels.pool.empty(t.dtype(), &[rows.len(), columns]);
            part.copy_from_f32(&t.to_vec_f32()[rows.start * columns..rows.end * columns]);
            part
        };
        let qkv = random(kernels, dtype, &[439, ENCODER.input_columns()], 1);
        let dy = random(kernels, dtype, &[439, ENCODER.output_columns()], 2);
        let together = run(kernels, ENCODER, &qkv, &dy, &OFFSETS, None);
        for bounds in OFFSETS.windows(2) {
            let rows = bounds[0] as usize..bounds[1] as usize;
            let inputs = [&qkv, &dy].map(|t| part(t, rows.clone()));
            let alone = run(kernels, ENCODER, &inputs[0], &inputs[1], &[0, rows.len() as u32], None);
            let expected = [0, 1, 2].map(|i| part(&together[i], rows.clone()));
            assert_eq!(bits(alone), bits(expected), "{dtype}, {} tokens", rows.len());
        }
    }
}

#[test]
fn no_tokens_are_no_work() {
    for kernels in paths(2) {
        let (qkv, dy) = (random(&kernels, F32, &[0, 384], 1), random(&kernels, F32, &[0, 128], 2));
        for offsets in [&[0][..], &[0, 0, 0]] {
            assert!(run(&kernels, ENCODER, &qkv, &dy, offsets, None).iter().all(Tensor::is_empty));
        }
    }
}

#[test]
fn large_scores_do_not_overflow() {
    for kernels in paths(1) {
        let shape = AttentionShape { query_heads: 1, key_value_heads: 1, head_dim: 1, causal: false };
        let qkv = kernels.pool.from_slice(&[100.0f32, 100.0, 1.0, 100.0, -100.0, 2.0], &[2, 3]);
        let dy = kernels.pool.from_slice(&[1.0f32, 1.0], &[2, 1]);
        let [y, log_sum, dqkv] = run(&kernels, shape, &qkv, &dy, &[0, 2], None);
        assert_eq!(y.to_vec_f32(), [1.0, 1.0]);
        assert_eq!(log_sum.to_vec_f32(), [1e4, 1e4]);
        assert!(dqkv.to_vec_f32().iter().all(|v| v.is_finite()));
    }
}
