//! Whole encoders against central differences, with every kind of dropout: masks are functions of their place, so the
//! loss is an ordinary function of the parameters.

use model::{Policy, Pooling};
use tensor::ReferenceKernels;

use crate::differences::check;
use crate::support::{FAMILIES, Size, encoder, pack, texts, weights};

const SIZE: Size = Size { vocab: 7, hidden: 6, heads: 2, layers: 2, intermediate: 7, tokens: 5 };

#[test]
fn of_every_family_under_every_head() {
    for family in FAMILIES {
        for (head, suffix) in ["ForSequenceClassification", "ForTokenClassification", "Model"].into_iter().enumerate() {
            let mut encoder = encoder(family, suffix, SIZE);
            encoder.policy = [Policy::Keep, Policy::Recompute][head % 2];
            encoder.pooling = [Pooling::Mean, Pooling::Cls][family as usize % 2];
            let kernels = ReferenceKernels::new();
            let mut weights = weights(encoder.descriptors(), &kernels, 31);
            let batch = pack(&encoder, &texts(SIZE.vocab, &[3, 1, 4], 8), 4);
            let worst = check(&kernels, &mut weights, &batch, |tape| encoder.forward(tape));
            eprintln!("{family}{suffix}: largest relative error {worst:.1e}");
        }
    }
}
