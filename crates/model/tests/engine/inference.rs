//! Types for inference: what rounding costs, that a text's neighbours and threads do not matter, and what stays in memory.

use model::{InferenceDtype, Weights};
use tensor::{CpuKernels, DType, Kernels, Layout, ReferenceKernels, Tensor};

use crate::support::{FAMILIES, Setting, Size, bits, encoder, infer, pack, relative_difference, texts, weights};

/// The second is as wide as MiniLM; no tile of a kernel divides the first.
const SIZES: [Size; 2] = [
    Size { vocab: 53, hidden: 36, heads: 3, layers: 2, intermediate: 75, tokens: 70 },
    Size { vocab: 53, hidden: 384, heads: 12, layers: 2, intermediate: 1536, tokens: 70 },
];
const SUFFIXES: [&str; 3] = ["ForSequenceClassification", "ForTokenClassification", "Model"];
const LENGTHS: [usize; 6] = [1, 70, 17, 2, 33, 64];

fn setting<'a>(kernels: &'a dyn Kernels, dtype: InferenceDtype) -> Setting<'a> {
    let stored = kernels.dtype() == DType::F32;
    Setting { dtype: if stored { dtype.activations() } else { kernels.dtype() }, ..Setting::plain(kernels) }
}

fn arranged(encoder: &model::Encoder, kernels: &dyn Kernels, dtype: InferenceDtype) -> Weights {
    let mut weights = weights(encoder.descriptors(), kernels, 4);
    weights.for_inference(kernels, &encoder.packable(), dtype);
    weights
}

/// Of one rounding per product; random weights, which average nothing out, lose more than trained ones.
fn bound(dtype: InferenceDtype) -> f64 {
    match dtype {
        InferenceDtype::F32 => 0.0,
        InferenceDtype::Bf16 => 0.05,
        InferenceDtype::Int8 => 0.1,
    }
}

#[test]
fn outputs_of_every_type_are_near_those_of_f32() {
    let kernels = CpuKernels::new(2);
    for size in SIZES {
        for (family, suffix) in FAMILIES.into_iter().zip(SUFFIXES) {
            let encoder = encoder(family, suffix, size);
            let batch = pack(&encoder, &texts(size.vocab, &LENGTHS, 5), 0);
            let plain = weights(encoder.descriptors(), &kernels, 4);
            let exact = infer(&encoder, &plain, &batch, Setting::plain(&kernels)).to_vec_f64();
            for dtype in InferenceDtype::ALL {
                let weights = arranged(&encoder, &kernels, dtype);
                let outputs = infer(&encoder, &weights, &batch, setting(&kernels, dtype)).to_vec_f64();
                let difference = relative_difference(&outputs, &exact, 0.0);
                eprintln!("{family}{suffix}, {} wide, in {dtype}: outputs differ by {difference:.1e}", size.hidden);
                assert!(difference <= bound(dtype), "{dtype}: {difference:.2e}");
            }
        }
    }
}

#[test]
fn int8_is_near_what_the_reference_makes_of_it() {
    let (reference, cpu) = (ReferenceKernels::new(), CpuKernels::new(2));
    let kernels: [&dyn Kernels; 2] = [&reference, &cpu];
    for family in FAMILIES {
        let encoder = encoder(family, SUFFIXES[0], SIZES[0]);
        let batch = pack(&encoder, &texts(SIZES[0].vocab, &LENGTHS, 5), 0);
        let [exact, fast] = kernels.map(|kernels| {
            let weights = arranged(&encoder, kernels, InferenceDtype::Int8);
            infer(&encoder, &weights, &batch, setting(kernels, InferenceDtype::Int8)).to_vec_f64()
        });
        // An activation half-way between two levels may round either way, and what follows with it.
        let difference = relative_difference(&fast, &exact, 0.0);
        eprintln!("{family}: {difference:.1e}");
        assert!(difference <= 0.02, "{difference:.2e}");
    }
}

#[test]
fn a_text_has_the_same_bits_alone_in_any_batch_and_on_any_number_of_threads() {
    for (size, suffix) in SIZES.into_iter().zip(SUFFIXES) {
        let encoder = encoder(FAMILIES[0], suffix, size);
        let per_token = encoder.is_per_token();
        // Every second text of `pack` is a pair, by its place.
        let all = texts(size.vocab, &LENGTHS, 5);
        for dtype in InferenceDtype::ALL {
            let teams = [1, 2, 3].map(|threads| {
                let kernels = CpuKernels::new(threads);
                let weights = arranged(&encoder, &kernels, dtype);
                (kernels, weights)
            });
            let run = |(kernels, weights): &(CpuKernels, Weights), texts: &[Vec<u32>], first: u64| {
                bits(&infer(&encoder, weights, &pack(&encoder, texts, first), setting(kernels, dtype)))
            };
            let [one, together, three] = teams.each_ref().map(|team| run(team, &all, 0));
            assert!(together == one && together == three, "threads change bits of {dtype}");
            let tokens: usize = LENGTHS.iter().sum();
            let columns = together.len() / if per_token { tokens } else { LENGTHS.len() };
            let mut row = 0;
            for (place, text) in all.iter().enumerate() {
                let rows = if per_token { text.len() } else { 1 };
                let alone = run(&teams[1], std::slice::from_ref(text), place as u64);
                assert!(alone == together[row * columns..(row + rows) * columns], "{dtype}: text {place}");
                row += rows;
            }
        }
    }
}

#[test]
fn what_is_kept_is_of_the_type_and_nothing_else_stays_reserved() {
    let size = Size { vocab: 3000, hidden: 384, heads: 12, layers: 2, intermediate: 1536, tokens: 128 };
    let encoder = encoder(FAMILIES[0], SUFFIXES[0], size);
    for dtype in InferenceDtype::ALL {
        let kernels = CpuKernels::new(1);
        let weights = arranged(&encoder, &kernels, dtype);
        let types = |name: &str| {
            let id = weights.ids().find(|&id| weights.descriptor(id).name == name).unwrap();
            let tensor: &Tensor = weights.get(id);
            (tensor.dtype(), tensor.layout())
        };
        let (table, layer, head) = match dtype {
            InferenceDtype::F32 => (DType::F32, DType::F32, DType::F32),
            InferenceDtype::Bf16 => (DType::BF16, DType::BF16, DType::BF16),
            InferenceDtype::Int8 => (DType::BF16, DType::I8, DType::F32),
        };
        assert_eq!(types("embeddings.word.weight"), (table, Layout::RowMajor));
        assert_eq!(types("layers.1.ffn.up.weight"), (layer, Layout::Packed));
        assert_eq!(types("classifier.weight"), (head, Layout::Packed));
        assert_eq!(types("layers.1.ffn.norm.weight"), (DType::F32, Layout::RowMajor));
        let stats = kernels.pool().stats();
        assert_eq!(stats.reserved, stats.live);
        // Not for packed bf16 where the CPU multiplies no pairs: there it is kept widened.
        if dtype != InferenceDtype::Bf16 || kernels.name().ends_with("bf16") {
            let bytes: usize = weights.ids().map(|id| weights.get(id).bytes()).sum();
            assert!(stats.live as f64 <= 1.05 * bytes as f64, "{dtype}: {} bytes for {bytes}", stats.live);
        }
    }
}
