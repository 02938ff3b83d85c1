//! The fast kernels against the reference in whole encoders: the same masks, awkward sizes.

use model::Batch;
use tensor::{CpuKernels, DType, Kernels, ReferenceKernels};

use crate::support::{
    FAMILIES, Setting, Size, encoder, gradient_difference, gradients_of, infer, pack, relative_difference, texts,
    weights,
};

/// Sizes of which no tile of a kernel is a divisor, and lengths from one token to more than a tile of attention.
const SIZES: [Size; 3] = [
    Size { vocab: 53, hidden: 36, heads: 3, layers: 2, intermediate: 75, tokens: 70 },
    Size { vocab: 31, hidden: 64, heads: 2, layers: 1, intermediate: 129, tokens: 70 },
    Size { vocab: 17, hidden: 5, heads: 5, layers: 2, intermediate: 3, tokens: 70 },
];
const LENGTHS: [usize; 6] = [1, 70, 17, 2, 33, 64];

/// Relative to the length of the tensor: a few dozen roundings of `f32`.
const OUTPUT_BOUND: f64 = 1e-5;
const GRADIENT_BOUND: f64 = 2e-5;

#[test]
fn on_outputs_and_every_gradient_with_dropout() {
    for (index, size) in SIZES.into_iter().enumerate() {
        for (turn, family) in FAMILIES.into_iter().enumerate() {
            let suffix = ["ForSequenceClassification", "ForTokenClassification"][(index + turn) % 2];
            let encoder = encoder(family, suffix, size);
            let batch = pack(&encoder, &texts(size.vocab, &LENGTHS, 5), 0);
            let (reference, cpu) = (ReferenceKernels::new(), CpuKernels::new(2));
            let run = |kernels: &dyn Kernels| {
                let weights = weights(encoder.descriptors(), kernels, 9);
                gradients_of(&encoder, &weights, &batch, Setting::dropping(kernels), |_| true)
            };
            let ((exact, exact_gradients), (fast, fast_gradients)) = (run(&reference), run(&cpu));
            let outputs = relative_difference(&fast.outputs.to_vec_f64(), &exact.outputs.to_vec_f64(), 0.0);
            let gradients = gradient_difference(&fast_gradients, &exact_gradients);
            eprintln!("{family}{suffix}, {} wide: outputs {outputs:.1e}, gradients {gradients:.1e}", size.hidden);
            assert!(outputs <= OUTPUT_BOUND, "outputs differ by {outputs:.2e}");
            assert!(gradients <= GRADIENT_BOUND, "gradients differ by {gradients:.2e}");
            assert!((fast.loss - exact.loss).abs() <= 1e-5, "losses {} and {}", fast.loss, exact.loss);
        }
    }
}

#[test]
fn activations_in_bf16_stay_within_its_own_rounding() {
    let size = SIZES[1];
    let cpu = CpuKernels::new(2);
    for family in FAMILIES {
        let encoder = encoder(family, "ForSequenceClassification", size);
        let batch = pack(&encoder, &texts(size.vocab, &LENGTHS, 5), 0);
        let mut weights = weights(encoder.descriptors(), &cpu, 9);
        let f32 = infer(&encoder, &weights, &batch, Setting::plain(&cpu)).to_vec_f64();
        weights.keep_working_copies(&cpu, DType::BF16);
        let setting = Setting { dtype: DType::BF16, ..Setting::plain(&cpu) };
        let difference = relative_difference(&infer(&encoder, &weights, &batch, setting).to_vec_f64(), &f32, 0.0);
        eprintln!("{family} in bf16: outputs {difference:.1e}");
        assert!(difference <= 0.05, "{difference}");
    }
}

#[test]
fn on_a_batch_of_nothing() {
    let kernels: [&dyn Kernels; 2] = [&ReferenceKernels::new(), &CpuKernels::new(2)];
    for kernels in kernels {
        for suffix in ["ForSequenceClassification", "ForTokenClassification", "Model"] {
            let encoder = encoder(FAMILIES[0], suffix, SIZES[0]);
            let weights = weights(encoder.descriptors(), kernels, 9);
            let batch: Batch = pack(&encoder, &[], 0);
            let outputs = infer(&encoder, &weights, &batch, Setting::plain(kernels));
            assert_eq!(outputs.rows(), 0);
            if suffix != "Model" {
                let (step, gradients) = gradients_of(&encoder, &weights, &batch, Setting::dropping(kernels), |_| true);
                assert_eq!(step.loss, 0.0);
                for (id, gradient) in gradients.iter() {
                    let name = &weights.descriptor(id).name;
                    assert!(gradient.to_vec_f64().iter().all(|&x| x == 0.0), "gradient of `{name}` is not zero");
                }
            }
        }
    }
}

#[test]
fn a_sequence_of_nothing_pools_to_zero_and_leaves_its_neighbours_alone() {
    let kernels: [&dyn Kernels; 2] = [&ReferenceKernels::new(), &CpuKernels::new(2)];
    for kernels in kernels {
        for suffix in ["Model", "ForTokenClassification"] {
            let encoder = encoder(FAMILIES[0], suffix, SIZES[0]);
            let weights = weights(encoder.descriptors(), kernels, 9);
            let text = texts(SIZES[0].vocab, &[7], 1).remove(0);
            let run = |texts: &[Vec<u32>]| {
                let batch = pack(&encoder, texts, 0);
                infer(&encoder, &weights, &batch, Setting::plain(kernels)).to_vec_f64()
            };
            let alone = run(std::slice::from_ref(&text));
            let rows = run(&[Vec::new(), Vec::new(), text, Vec::new()]);
            let empty = if suffix == "Model" { SIZES[0].hidden } else { 0 };
            assert_eq!(rows[2 * empty..2 * empty + alone.len()], alone);
            let others = rows[..2 * empty].iter().chain(&rows[2 * empty + alone.len()..]);
            assert!(others.copied().all(|x| x == 0.0));
        }
    }
}
