//! What a result does not depend on: a text's neighbours, the number of threads, the cut into micro-batches.

use model::{Family, Gradients, InferenceDtype, Loss};
use tensor::{CpuKernels, DType, Kernels, Stream};

use crate::support::{
    FAMILIES, Setting, Size, bits, classes, encoder, gradient_bits, gradient_difference, gradients_of, infer, pack,
    step, texts, weights,
};

const SIZES: [Size; 3] = [
    Size { vocab: 53, hidden: 36, heads: 3, layers: 2, intermediate: 75, tokens: 70 },
    Size { vocab: 53, hidden: 64, heads: 2, layers: 1, intermediate: 256, tokens: 140 },
    Size { vocab: 53, hidden: 384, heads: 12, layers: 1, intermediate: 1536, tokens: 70 },
];

#[test]
fn a_text_has_the_same_bits_alone_and_among_any_neighbours() {
    let kernels = CpuKernels::new(2);
    for (turn, size) in SIZES.into_iter().enumerate() {
        let encoder = encoder(FAMILIES[turn], ["ForSequenceClassification", "Model"][turn % 2], size);
        let mut weights = weights(encoder.descriptors(), &kernels, 4);
        for dtype in [DType::F32, DType::BF16] {
            if dtype == DType::BF16 {
                weights.keep_working_copies(&kernels, dtype);
            }
            let setting = Setting { dtype, ..Setting::plain(&kernels) };
            // Identity 0 is a single text in `pack`, and stays one at every even place.
            let run = |texts: &[Vec<u32>]| infer(&encoder, &weights, &pack(&encoder, texts, 0), setting);
            for length in [1, 2, 7, 16, 33, 64, size.tokens] {
                let text = texts(size.vocab, &[length], 100 + length as u64).remove(0);
                let alone = bits(&run(std::slice::from_ref(&text)));
                for (neighbours, place) in [(1, 0), (2, 2), (9, 4), (5, 0)] {
                    let random = Stream::new(length as u64, neighbours, 0);
                    let lengths: Vec<usize> =
                        (0..neighbours).map(|i| 1 + random.word(i, 0) as usize % size.tokens).collect();
                    let mut together = texts(size.vocab, &lengths, neighbours);
                    together.insert(place, text.clone());
                    let outputs = bits(&run(&together));
                    let columns = alone.len();
                    let ours = &outputs[place * columns..(place + 1) * columns];
                    assert_eq!(alone, ours, "{length} tokens of {dtype} at place {place} among {lengths:?}");
                }
            }
        }
    }
}

#[test]
fn outputs_and_gradients_have_the_same_bits_on_one_two_and_three_threads() {
    for dtype in [DType::F32, DType::BF16] {
        for (turn, size) in SIZES.into_iter().enumerate() {
            let encoder = encoder(FAMILIES[turn], "ForSequenceClassification", size);
            let batch = pack(&encoder, &texts(size.vocab, &[1, 70, 3, 19, 44, 5], 6), 0);
            let run = |threads: usize| {
                let kernels = CpuKernels::new(threads);
                let weights = weights(encoder.descriptors(), &kernels, 4);
                let setting = Setting { dtype, ..Setting::dropping(&kernels) };
                let (step, gradients) = gradients_of(&encoder, &weights, &batch, setting, |_| true);
                (bits(&step.outputs), gradient_bits(&gradients))
            };
            let alone = run(1);
            assert!(alone == run(2), "two threads differ from one, {} wide, {dtype}", size.hidden);
            assert!(alone == run(3), "three threads differ from one, {} wide, {dtype}", size.hidden);
        }
    }
}

#[test]
fn micro_batches_of_any_cut_give_the_gradient_of_the_whole_with_dropout() {
    let kernels = CpuKernels::new(2);
    for (turn, family) in FAMILIES.into_iter().enumerate() {
        let suffix = ["ForSequenceClassification", "ForTokenClassification"][turn % 2];
        let encoder = encoder(family, suffix, SIZES[0]);
        let weights = weights(encoder.descriptors(), &kernels, 4);
        let all = texts(SIZES[0].vocab, &[1, 70, 3, 19, 44, 5], 6);
        let whole = pack(&encoder, &all, 0);
        let setting = Setting::dropping(&kernels);
        let (_, expected) = gradients_of(&encoder, &weights, &whole, setting, |_| true);
        let per_token = suffix == "ForTokenClassification";
        let model::Targets::Classes(targets) = classes(&whole, per_token) else { unreachable!() };
        let weight = Loss::default().weight(&model::Targets::Classes(targets.clone()));
        for cut in [&[1, 3, 2][..], &[6], &[1; 6], &[5, 1]] {
            let mut gradients = Gradients::new(&weights, &kernels, |_| true);
            gradients.begin();
            let (mut first, mut row) = (0, 0);
            for count in cut {
                let batch = pack(&encoder, &all[first..first + count], first as u64);
                let rows = if per_token { batch.tokens() } else { batch.sequences() };
                let targets = model::Targets::Classes(targets[row..row + rows].to_vec());
                step(&encoder, &weights, &batch, &targets, 1.0 / weight, setting, &mut gradients);
                (first, row) = (first + count, row + rows);
            }
            gradients.finish(&kernels);
            let difference = gradient_difference(&gradients, &expected);
            eprintln!("{family}, micro-batches {cut:?}: gradients differ by {difference:.1e}");
            assert!(difference <= 1e-6, "cut {cut:?}: gradients differ by {difference:.2e}");
        }
    }
}

#[test]
fn prepacked_weights_give_the_same_bits() {
    let kernels = CpuKernels::new(2);
    for size in SIZES {
        let encoder = encoder(Family::Bert, "ForSequenceClassification", size);
        let mut weights = weights(encoder.descriptors(), &kernels, 4);
        let batches =
            [&[1][..], &[5], &[13, 2, 40], &[70, 70, 61]].map(|l| pack(&encoder, &texts(size.vocab, l, 2), 0));
        let outputs =
            |weights: &_| batches.each_ref().map(|b| bits(&infer(&encoder, weights, b, Setting::plain(&kernels))));
        let plain = outputs(&weights);
        weights.for_inference(&kernels, &encoder.packable(), InferenceDtype::F32);
        assert!(plain == outputs(&weights), "prepacking changes bits, {} wide on {}", size.hidden, kernels.name());
    }
}
