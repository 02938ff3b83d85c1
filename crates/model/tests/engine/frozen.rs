//! Frozen parameters: no gradient, nothing recorded below the lowest trained one, and no change in the others'.

use model::{ParamDescr, Policy};
use tensor::{CpuKernels, Kernels, ReferenceKernels};

use crate::support::{FAMILIES, Setting, Size, bits, encoder, gradients_of, pack, texts, weights};

const SIZE: Size = Size { vocab: 53, hidden: 36, heads: 3, layers: 3, intermediate: 75, tokens: 70 };
const LENGTHS: [usize; 5] = [1, 40, 3, 19, 5];

/// Trains what `trainable` selects beside a run that trains everything; returns the bytes saved by each.
fn compare(
    kernels: &dyn Kernels,
    suffix: &str,
    policy: Policy,
    trainable: fn(&ParamDescr) -> bool,
) -> Vec<(usize, usize)> {
    let saved = |family| {
        let mut encoder = encoder(family, suffix, SIZE);
        encoder.policy = policy;
        let weights = weights(encoder.descriptors(), kernels, 2);
        let batch = pack(&encoder, &texts(SIZE.vocab, &LENGTHS, 6), 0);
        let setting = Setting::dropping(kernels);
        let (all, expected) = gradients_of(&encoder, &weights, &batch, setting, |_| true);
        let (some, gradients) = gradients_of(&encoder, &weights, &batch, setting, trainable);
        for id in weights.ids() {
            let descriptor = weights.descriptor(id);
            assert_eq!(gradients.get(id).is_some(), trainable(descriptor), "{}", descriptor.name);
            if let Some(gradient) = gradients.get(id) {
                assert!(bits(gradient) == bits(expected.get(id).unwrap()), "{family}: {}", descriptor.name);
            }
        }
        assert!(bits(&some.outputs) == bits(&all.outputs));
        (some.saved_bytes, all.saved_bytes)
    };
    FAMILIES.into_iter().map(saved).collect()
}

#[test]
fn under_a_trained_head_the_encoder_records_nothing() {
    let kernels = CpuKernels::new(2);
    for (suffix, rows) in
        [("ForSequenceClassification", LENGTHS.len()), ("ForTokenClassification", LENGTHS.iter().sum())]
    {
        // Three values of one width at most: the input of the pooler, its output before the activation, and after it.
        let most = 3 * rows * SIZE.hidden * 4;
        for policy in [Policy::Keep, Policy::Recompute] {
            for (some, all) in compare(&kernels, suffix, policy, ParamDescr::is_head) {
                assert!(some <= most, "{suffix}: {some} bytes saved, {most} are enough; {all} for everything");
            }
        }
    }
}

#[test]
fn trained_layers_over_frozen_ones_keep_their_gradients() {
    let cases: [fn(&ParamDescr) -> bool; 5] = [
        |d| d.name.starts_with("layers.2.") || d.is_head(),
        |d| d.name.contains("ffn."),
        |d| d.name == "layers.1.attention.norm.weight",
        |d| d.name == "embeddings.position.weight" || d.name.ends_with("norm.bias"),
        |d| !d.name.starts_with("embeddings.") && d.name.ends_with("weight"),
    ];
    let kernels: [&dyn Kernels; 2] = [&ReferenceKernels::new(), &CpuKernels::new(2)];
    for kernels in kernels {
        for policy in [Policy::Keep, Policy::Recompute] {
            for trainable in cases {
                for (some, all) in compare(kernels, "ForSequenceClassification", policy, trainable) {
                    assert!(some <= all);
                }
            }
        }
    }
}
