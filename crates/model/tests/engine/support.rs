//! Small encoders with random values, ragged batches, one training step, and comparisons.

use std::path::PathBuf;

use model::{
    Batch, Encoder, Family, Gradients, Loss, ModelConfig, ParamDescr, ParamId, Pass, Randomness, Sequence, Tape,
    Targets, Value, Weights,
};
use tensor::{DType, Kernels, Stream, Tensor};

/// The families, by the prefix of their architectures.
pub const FAMILIES: [Family; 3] = [Family::Bert, Family::Roberta, Family::DistilBert];

/// What dropout masks are drawn from wherever a test has dropout.
pub const RANDOMNESS: Randomness = Randomness { seed: 77, step: 5 };

/// The size of a small encoder; 2 token types, except in DistilBERT.
#[derive(Clone, Copy)]
pub struct Size {
    pub vocab: usize,
    pub hidden: usize,
    pub heads: usize,
    pub layers: usize,
    pub intermediate: usize,
    /// Longest sequence.
    pub tokens: usize,
}

/// An encoder of `family` under the head that `suffix` names (`ForSequenceClassification`), with three labels and every
/// kind of dropout.
pub fn encoder(family: Family, suffix: &str, size: Size) -> Encoder {
    let (name, kind) = match family {
        Family::Bert => ("Bert", "bert"),
        Family::Roberta => ("Roberta", "roberta"),
        Family::DistilBert => ("DistilBert", "distilbert"),
    };
    let first_position = if family == Family::Roberta { 2 } else { 0 };
    let json = serde_json::json!({
        "architectures": [format!("{name}{suffix}")], "model_type": kind,
        "vocab_size": size.vocab, "hidden_size": size.hidden, "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads, "intermediate_size": size.intermediate,
        "max_position_embeddings": size.tokens + first_position, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.3, "num_labels": 3,
    });
    Encoder::new(ModelConfig::parse(&json.to_string()).unwrap())
}

/// A random value of a parameter: norms near one, other vectors near zero, matrices large enough that no nonlinearity
/// stays in its linear part.
fn value_of(descriptor: &ParamDescr, normal: f64) -> f64 {
    let scale = match descriptor.shape.as_slice() {
        [_] => 0.2,
        _ if descriptor.name.starts_with("embeddings.") => 0.8,
        shape => 1.4 / (shape[shape.len() - 1] as f64).sqrt(),
    };
    let norm_scale = descriptor.name.ends_with("norm.weight");
    normal * scale + if norm_scale { 1.0 } else { 0.0 }
}

/// Random parameters, the same `f32` values on every implementation of the kernels.
pub fn weights(descriptors: &[ParamDescr], kernels: &dyn Kernels, seed: u64) -> Weights {
    let built = Weights::build(descriptors, kernels, |id, descriptor, tensor| {
        let stream = Stream::new(seed, 0, id.0 as u32);
        let value = |i| value_of(descriptor, stream.normal(i, 0)) as f32;
        tensor.copy_from_f32(&(0..descriptor.len() as u64).map(value).collect::<Vec<f32>>());
        Ok::<(), std::convert::Infallible>(())
    });
    let Ok(weights) = built;
    weights
}

/// Random token ids, one text for each length.
pub fn texts(vocab: usize, lengths: &[usize], seed: u64) -> Vec<Vec<u32>> {
    let id = |text: usize, i: usize| Stream::new(seed, 0, i as u32).word(text as u64, 0) % vocab as u32;
    lengths.iter().enumerate().map(|(text, &length)| (0..length).map(|i| id(text, i)).collect()).collect()
}

/// Packs texts; every second one is a pair that changes segment in its middle. The identities are those of `first..`.
pub fn pack(encoder: &Encoder, texts: &[Vec<u32>], first: u64) -> Batch {
    let sequence = |(ids, identity): (_, u64)| -> Sequence {
        let ids: &Vec<u32> = ids;
        let first_segment = if identity % 2 == 1 { ids.len() / 2 } else { ids.len() };
        Sequence { ids, first_segment, identity }
    };
    Batch::pack(&encoder.config().encoder, texts.iter().zip(first..).map(sequence))
}

/// Every text's class, or every token's; each third token has none.
pub fn classes(batch: &Batch, per_token: bool) -> Targets {
    let count = if per_token { batch.tokens() } else { batch.sequences() };
    Targets::Classes((0..count as i32).map(|i| if per_token && i % 3 == 2 { -1 } else { i * 7 % 3 }).collect())
}

/// How a pass runs.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub kernels: &'a dyn Kernels,
    pub dtype: DType,
    pub randomness: Option<Randomness>,
}

impl<'a> Setting<'a> {
    /// With dropout, in the kernels' own type.
    pub fn dropping(kernels: &'a dyn Kernels) -> Self {
        Self { kernels, dtype: kernels.dtype(), randomness: Some(RANDOMNESS) }
    }

    /// As in inference, in the kernels' own type.
    pub fn plain(kernels: &'a dyn Kernels) -> Self {
        Self { randomness: None, ..Self::dropping(kernels) }
    }

    pub fn pass<'p>(self, weights: &'p Weights, batch: &'p Batch) -> Pass<'p>
    where
        'a: 'p,
    {
        Pass { kernels: self.kernels, weights, batch, dtype: self.dtype, randomness: self.randomness }
    }
}

/// What one step leaves besides the gradients.
pub struct Step {
    pub loss: f64,
    pub outputs: Tensor,
    pub saved_bytes: usize,
}

/// Forward and backward of the loss sum times `scale`, added to `gradients`.
pub fn step(
    encoder: &Encoder,
    weights: &Weights,
    batch: &Batch,
    targets: &Targets,
    scale: f64,
    setting: Setting,
    gradients: &mut Gradients,
) -> Step {
    let mut tape = Tape::training(setting.pass(weights, batch), gradients);
    let outputs: Value = encoder.forward(&mut tape);
    let (sum, gradient) = Loss::default().gradient(setting.kernels, &outputs.tensor, targets, scale);
    let saved_bytes = tape.saved_bytes();
    tape.backward(&outputs, gradient, gradients);
    Step { loss: sum.sum * scale, outputs: outputs.tensor, saved_bytes }
}

/// One update's gradients of the parameters that `trainable` selects, from a single batch.
pub fn gradients_of(
    encoder: &Encoder,
    weights: &Weights,
    batch: &Batch,
    setting: Setting,
    trainable: impl Fn(&ParamDescr) -> bool,
) -> (Step, Gradients) {
    let targets = classes(batch, encoder.config().head == model::Head::Token);
    let mut gradients = Gradients::new(weights, setting.kernels, trainable);
    gradients.begin();
    let scale = 1.0 / Loss::default().weight(&targets).max(1.0);
    let step = step(encoder, weights, batch, &targets, scale, setting, &mut gradients);
    gradients.finish(setting.kernels);
    (step, gradients)
}

/// The outputs of an inference pass.
pub fn infer(encoder: &Encoder, weights: &Weights, batch: &Batch, setting: Setting) -> Tensor {
    encoder.forward(&mut Tape::inference(setting.pass(weights, batch))).tensor
}

/// The bit patterns of a tensor's elements (exact for `f32` and `bf16`).
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec_f32().into_iter().map(f32::to_bits).collect()
}

/// The bit patterns of all gradients.
pub fn gradient_bits(gradients: &Gradients) -> Vec<Vec<u32>> {
    gradients.iter().map(|(_, gradient)| bits(gradient)).collect()
}

/// The Euclidean length.
pub fn length(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// `‖a − b‖ / ‖b‖`; a `b` shorter than `floor` counts as that long.
pub fn relative_difference(a: &[f64], b: &[f64], floor: f64) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    length(&difference) / length(b).max(floor)
}

/// The largest relative difference over all gradients; where the exact one is zero, as for key biases, rounding is
/// measured against the longest gradient instead.
pub fn gradient_difference(ours: &Gradients, theirs: &Gradients) -> f64 {
    let longest = theirs.iter().map(|(_, gradient)| length(&gradient.to_vec_f64())).fold(0.0, f64::max);
    let pairs = ours.iter().zip(theirs.iter());
    let difference = |((a, ours), (b, theirs)): ((ParamId, &Tensor), (ParamId, &Tensor))| {
        assert_eq!(a, b);
        relative_difference(&ours.to_vec_f64(), &theirs.to_vec_f64(), 1e-3 * longest)
    };
    pairs.map(difference).fold(0.0, f64::max)
}

/// A path below the repository, or `None` with a message when a test's material is not there.
pub fn material(path: &str, how: &str) -> Option<PathBuf> {
    let path_here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if !path_here.exists() {
        eprintln!("skipped: {path} is not here; {how}");
        return None;
    }
    Some(path_here)
}
