//! Real pretrained weights: all-MiniLM-L6-v2 against what PyTorch and transformers make of awkward texts.

use model::files::ModelDir;
use model::tokenizer::{Options, Tokenizer};
use model::{Batch, InferenceDtype, LoadMode, Model, Sequence};
use serde::Deserialize;
use tensor::{CpuKernels, DType};

use crate::support::{bits, material};

const BOUND: f64 = 1e-4;

#[derive(Deserialize)]
struct References {
    texts: Vec<String>,
    minilm: Vec<Reference>,
}

#[derive(Deserialize)]
struct Reference {
    /// Tokens.
    n: usize,
    /// The first forty of them.
    ids: Vec<u32>,
    emb: Vec<f64>,
}

#[test]
fn embeddings_equal_the_references_alone_together_and_prepacked() {
    let Some(dir) = material(".cache/minilm", "run `scripts/fetch.py minilm`") else { return };
    let Some(expected) = material("../shared/models/expected.json", "it holds the references") else { return };
    let expected: References = serde_json::from_str(&std::fs::read_to_string(expected).unwrap()).unwrap();
    let kernels = CpuKernels::new(2);
    let model_dir = ModelDir::open(dir.to_str().unwrap()).unwrap();
    let (mut model, report) = Model::load(&model_dir, &LoadMode::AsIs, &kernels).unwrap();
    assert_eq!(report.missing, [""; 0]);
    // The buffer `embeddings.position_ids` is no tensor of a model, and a bare encoder does without its pooler.
    assert_eq!(report.unexpected, [""; 0]);
    model.tokenizer = Tokenizer::open_with(&dir, &Options { allow_special_tokens: true }).unwrap();

    let texts: Vec<Vec<u32>> =
        expected.texts.iter().map(|text| model.tokenizer.encode(text, 512).unwrap().ids).collect();
    for (ids, reference) in texts.iter().zip(&expected.minilm) {
        assert_eq!((ids.len(), &ids[..ids.len().min(40)]), (reference.n, &reference.ids[..]));
    }
    let embed = |model: &Model, texts: &[Vec<u32>]| {
        let sequence = |ids| -> Sequence {
            let ids: &Vec<u32> = ids;
            Sequence { ids, first_segment: ids.len(), identity: 0 }
        };
        let batch = Batch::pack(&model.encoder.config().encoder, texts.iter().map(sequence));
        model.infer(&kernels, &batch, DType::F32)
    };
    let together = embed(&model, &texts);
    let mut worst: f64 = 0.0;
    for (ours, reference) in together.to_vec_f64().chunks(384).zip(&expected.minilm) {
        let differences = ours.iter().zip(&reference.emb).map(|(a, b)| (a - b).abs());
        worst = differences.fold(worst, f64::max);
    }
    eprintln!("MiniLM: largest difference {worst:.1e}");
    assert!(worst <= BOUND, "an embedding differs by {worst:.2e}");

    let together = bits(&together);
    for (text, embedding) in texts.iter().zip(together.chunks(384)).take(6) {
        assert!(bits(&embed(&model, std::slice::from_ref(text))) == embedding, "{} tokens alone", text.len());
    }
    let packable = model.encoder.packable();
    model.weights.for_inference(&kernels, &packable, InferenceDtype::F32);
    assert!(bits(&embed(&model, &texts[..7])) == together[..7 * 384], "prepacked weights change bits");
}
