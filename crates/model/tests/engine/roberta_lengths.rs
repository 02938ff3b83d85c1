//! RoBERTa's positions begin behind the padding id, so 514 rows of its table are 512 tokens: those work, a 513th is cut.

use std::fs;

use model::tokenizer::Tokenizer;
use model::{Batch, Family, Sequence};
use tensor::CpuKernels;

use crate::support::{Setting, Size, bits, encoder, gradients_of, infer, material, weights};

const SIZE: Size = Size { vocab: 50265, hidden: 12, heads: 2, layers: 1, intermediate: 8, tokens: 512 };

#[test]
fn texts_of_510_511_and_512_tokens_work_and_513_are_cut() {
    let Some(dir) = material("../shared/models/tokenizer-roberta-base", "it holds RoBERTa's vocabulary") else {
        return;
    };
    assert!(fs::metadata(&dir).unwrap().is_dir());
    let tokenizer = Tokenizer::open(&dir).unwrap();
    let kernels = CpuKernels::new(2);
    let encoder = encoder(Family::Roberta, "ForSequenceClassification", SIZE);
    let config = &encoder.config().encoder;
    assert_eq!((config.max_positions, config.max_tokens()), (514, 512));
    let weights = weights(encoder.descriptors(), &kernels, 3);
    for (tokens, cut) in [(510, false), (511, false), (512, false), (513, true), (700, true)] {
        // Every word is one token; two more are control tokens.
        let text = vec!["cases"; tokens - 2].join(" ");
        let text = format!(" {text}");
        let encoding = tokenizer.encode(&text, config.max_tokens()).unwrap();
        assert_eq!((encoding.ids.len(), encoding.truncated), (tokens.min(512), cut), "{tokens} tokens");
        assert_eq!(encoding.ids[encoding.ids.len() - 1], 2, "`</s>` stays at the end");
        let ids = &encoding.ids;
        let batch = Batch::pack(config, [Sequence { ids, first_segment: ids.len(), identity: 0 }]);
        assert_eq!(batch.positions.first(), Some(&2));
        assert_eq!(batch.positions.last(), Some(&(ids.len() as u32 + 1)));
        let (step, gradients) = gradients_of(&encoder, &weights, &batch, Setting::dropping(&kernels), |_| true);
        assert!(step.loss.is_finite());
        let positions = encoder.descriptors().iter().position(|d| d.name == "embeddings.position.weight").unwrap();
        let gradient = gradients.get(model::ParamId(positions)).unwrap().to_vec_f32();
        let touched: Vec<bool> = gradient.chunks(SIZE.hidden).map(|row| row.iter().any(|&x| x != 0.0)).collect();
        let expected: Vec<bool> = (0..514).map(|row| (2..2 + ids.len()).contains(&row)).collect();
        assert_eq!(touched, expected, "{tokens} tokens");
        let outputs = infer(&encoder, &weights, &batch, Setting::plain(&kernels));
        assert!(bits(&outputs).iter().all(|&b| f32::from_bits(b).is_finite()));
    }
}
