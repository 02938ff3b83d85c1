//! What the tape keeps: recomputed segments give the same bits from less memory, and 16-bit activations take half.

use model::{Encoder, Family, Policy, Weights};
use tensor::{CpuKernels, DType, Kernels};

use crate::support::{FAMILIES, Setting, Size, encoder, gradient_bits, gradients_of, pack, texts, weights};

const SIZE: Size = Size { vocab: 53, hidden: 64, heads: 2, layers: 6, intermediate: 256, tokens: 70 };

fn model(family: Family, kernels: &CpuKernels) -> (Encoder, Weights, model::Batch) {
    let encoder = encoder(family, "ForSequenceClassification", SIZE);
    let weights = weights(encoder.descriptors(), kernels, 2);
    let batch = pack(&encoder, &texts(SIZE.vocab, &[1, 70, 3, 19, 44, 5], 6), 0);
    (encoder, weights, batch)
}

#[test]
fn recomputation_gives_the_same_bits_under_dropout_and_saves_a_fraction() {
    let kernels = CpuKernels::new(2);
    for dtype in [DType::F32, DType::BF16] {
        for family in FAMILIES {
            let (mut encoder, weights, batch) = model(family, &kernels);
            let setting = Setting { dtype, ..Setting::dropping(&kernels) };
            let (kept, expected) = gradients_of(&encoder, &weights, &batch, setting, |_| true);
            encoder.policy = Policy::Recompute;
            let (again, gradients) = gradients_of(&encoder, &weights, &batch, setting, |_| true);
            assert!(gradient_bits(&gradients) == gradient_bits(&expected), "{family}, {dtype}");
            assert_eq!(again.loss.to_bits(), kept.loss.to_bits());
            let share = again.saved_bytes as f64 / kept.saved_bytes as f64;
            eprintln!("{family}, {dtype}: recomputation saves {share:.3} of the bytes");
            // A layer keeps its input (one width) of what would be fourteen: qkv 3, attention 1, two norms 2, two
            // values read by linear layers 2, wide 4, and the rest.
            assert!(share <= 0.15, "{family}, {dtype}: {share:.3}");
        }
    }
}

#[test]
fn activations_saved_in_bf16_take_at_most_55_percent_of_f32() {
    let kernels = CpuKernels::new(2);
    for policy in [Policy::Keep, Policy::Recompute] {
        for family in FAMILIES {
            let (mut encoder, mut weights, batch) = model(family, &kernels);
            encoder.policy = policy;
            let full = gradients_of(&encoder, &weights, &batch, Setting::dropping(&kernels), |_| true).0;
            weights.keep_working_copies(&kernels, DType::BF16);
            let setting = Setting { dtype: DType::BF16, ..Setting::dropping(&kernels) };
            let half = gradients_of(&encoder, &weights, &batch, setting, |_| true).0;
            let share = half.saved_bytes as f64 / full.saved_bytes as f64;
            eprintln!("{family}, {policy:?}: bf16 saves {share:.3} of f32's bytes");
            assert!(share <= 0.55, "{family}, {policy:?}: {share:.3}");
        }
    }
}

#[test]
fn inference_records_nothing() {
    let kernels = CpuKernels::new(1);
    let (encoder, weights, batch) = model(Family::Bert, &kernels);
    let held = kernels.pool().stats().live;
    let mut tape = model::Tape::inference(Setting::plain(&kernels).pass(&weights, &batch));
    let outputs = encoder.forward(&mut tape);
    assert_eq!(tape.saved_bytes(), 0);
    drop((tape, outputs));
    assert_eq!(kernels.pool().stats().live, held);
}
