//! Every operator's gradient against central differences: of its inputs and of its parameters.

use model::ops::{
    AddNorm, Attention, EmbedNorm, FeedForward, FirstToken, Linear, LinearParams, MeanPool, NormParams, NormalizeRows,
    RowDropout,
};
use model::{
    Batch, EncoderConfig, Family, Gradients, InputGradient, Loss, Op, ParamDescr, ParamId, Pass, Saved, Tape, Targets,
    Value,
};
use tensor::{Activation, AttentionShape, DType, Kernels, ReferenceKernels, Tensor};

use crate::differences::{check, parameter};
use crate::support::{Size, encoder, pack, relative_difference, texts, weights};

const ACTIVATIONS: [Activation; 5] =
    [Activation::Identity, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Tanh];
const LENGTHS: [usize; 4] = [1, 5, 2, 3];
const TOKENS: usize = 11;

/// A parameter as a value: what an operator's inputs are in these tests.
struct Leaf(ParamId);

impl Op for Leaf {
    fn name(&self) -> &'static str {
        "leaf"
    }

    fn parameters(&self) -> Vec<ParamId> {
        vec![self.0]
    }

    fn forward(&self, pass: &Pass, _: &[&Tensor], _: &mut Saved) -> Tensor {
        let mut copy = pass.empty(pass.weights.get(self.0).shape());
        pass.kernels.cast(pass.weights.get(self.0), &mut copy);
        copy
    }

    fn backward(&self, pass: &Pass, _: &Saved, dy: Tensor, _: &mut [InputGradient], gradients: &mut Gradients) {
        let Some((target, accumulate)) = gradients.target(self.0) else { return };
        if accumulate { pass.kernels.add_assign(target, &dy) } else { pass.kernels.cast(&dy, target) }
    }
}

fn leaf(tape: &mut Tape, id: usize) -> Value {
    tape.run(Leaf(ParamId(id)), &[])
}

/// A ragged batch of eleven tokens in four sequences, two of them pairs.
fn batch() -> (Batch, EncoderConfig) {
    let size = Size { vocab: 7, hidden: 6, heads: 2, layers: 1, intermediate: 8, tokens: 5 };
    let encoder = encoder(Family::Bert, "Model", size);
    (pack(&encoder, &texts(size.vocab, &LENGTHS, 3), 0), encoder.config().encoder.clone())
}

fn check_operator(parameters: &[ParamDescr], build: impl Fn(&mut Tape) -> Value) {
    let kernels = ReferenceKernels::new();
    let mut weights = weights(parameters, &kernels, 12);
    check(&kernels, &mut weights, &batch().0, build);
}

fn linear(weight: usize, bias: usize) -> LinearParams {
    LinearParams { weight: ParamId(weight), bias: ParamId(bias) }
}

fn norm(gamma: usize, beta: usize) -> NormParams {
    NormParams { gamma: ParamId(gamma), beta: ParamId(beta), eps: 1e-5 }
}

#[test]
fn embed_norm_with_token_types_and_without() {
    let (_, config) = batch();
    for types in [true, false] {
        let mut parameters = vec![
            parameter("embeddings.word", &[config.vocab_size, 6]),
            parameter("embeddings.position", &[config.max_positions, 6]),
            parameter("norm.weight", &[6]),
            parameter("norm.bias", &[6]),
        ];
        parameters.extend(types.then(|| parameter("embeddings.type", &[2, 6])));
        for dropout in [0.0, 0.3] {
            check_operator(&parameters, |tape| {
                let token_type = types.then_some(ParamId(4));
                let (word, position) = (ParamId(0), ParamId(1));
                tape.run(EmbedNorm { word, position, token_type, norm: norm(2, 3), dropout, site: 0 }, &[])
            });
        }
    }
}

#[test]
fn add_norm_with_dropout_on_its_branch_and_without() {
    let parameters = [
        parameter("branch", &[TOKENS, 6]),
        parameter("residual", &[TOKENS, 6]),
        parameter("norm.weight", &[6]),
        parameter("norm.bias", &[6]),
    ];
    for dropout in [0.0, 0.4] {
        check_operator(&parameters, |tape| {
            let (branch, residual) = (leaf(tape, 0), leaf(tape, 1));
            tape.run(AddNorm { norm: norm(2, 3), dropout, site: 1 }, &[&branch, &residual])
        });
    }
}

#[test]
fn attention_with_dropout_grouped_heads_and_causal_order() {
    for (query_heads, key_value_heads, causal) in [(2, 2, false), (4, 2, false), (2, 2, true), (3, 1, true)] {
        let shape = AttentionShape { query_heads, key_value_heads, head_dim: 3, causal };
        let parameters = [parameter("qkv", &[TOKENS, shape.input_columns()])];
        for dropout in [0.0, 0.3] {
            check_operator(&parameters, |tape| {
                let qkv = leaf(tape, 0);
                tape.run(Attention { shape, dropout, site: 2 }, &[&qkv])
            });
        }
    }
}

#[test]
fn linear_under_every_activation() {
    let parameters = [parameter("x", &[TOKENS, 6]), parameter("w", &[5, 6]), parameter("b", &[5])];
    for activation in ACTIVATIONS {
        check_operator(&parameters, |tape| {
            let x = leaf(tape, 0);
            tape.run(Linear { params: linear(1, 2), activation }, &[&x])
        });
    }
}

#[test]
fn feed_forward_under_every_activation() {
    let parameters = [
        parameter("x", &[TOKENS, 6]),
        parameter("up", &[8, 6]),
        parameter("up.bias", &[8]),
        parameter("down", &[6, 8]),
        parameter("down.bias", &[6]),
    ];
    for activation in ACTIVATIONS {
        check_operator(&parameters, |tape| {
            let x = leaf(tape, 0);
            tape.run(FeedForward { up: linear(1, 2), down: linear(3, 4), activation }, &[&x])
        });
    }
}

#[test]
fn dropout_over_tokens_and_over_sequences() {
    for (per_token, rows) in [(true, TOKENS), (false, LENGTHS.len())] {
        check_operator(&[parameter("x", &[rows, 9])], |tape| {
            let x = leaf(tape, 0);
            tape.run(RowDropout { dropout: 0.5, site: 4, per_token }, &[&x])
        });
    }
}

#[test]
fn pooling_and_normalisation_of_rows() {
    let parameters = [parameter("x", &[TOKENS, 6])];
    check_operator(&parameters, |tape| {
        let x = leaf(tape, 0);
        tape.run(FirstToken, &[&x])
    });
    check_operator(&parameters, |tape| {
        let x = leaf(tape, 0);
        tape.run(MeanPool, &[&x])
    });
    check_operator(&parameters, |tape| {
        let x = leaf(tape, 0);
        tape.run(NormalizeRows, &[&x])
    });
}

#[test]
fn a_value_and_a_parameter_that_are_used_twice_sum_their_gradients() {
    let parameters = [
        parameter("x", &[TOKENS, 6]),
        parameter("w", &[6, 6]),
        parameter("b", &[6]),
        parameter("norm.weight", &[6]),
        parameter("norm.bias", &[6]),
    ];
    check_operator(&parameters, |tape| {
        let x = leaf(tape, 0);
        let once = tape.run(Linear { params: linear(1, 2), activation: Activation::Tanh }, &[&x]);
        let twice = tape.run(Linear { params: linear(1, 2), activation: Activation::Identity }, &[&once]);
        let sum = tape.run(AddNorm { norm: norm(3, 4), dropout: 0.2, site: 6 }, &[&twice, &x]);
        tape.run(AddNorm { norm: norm(3, 4), dropout: 0.0, site: 7 }, &[&sum, &x])
    });
}

#[test]
fn every_loss_with_class_weights_smoothing_and_ignored_targets() {
    let kernels = ReferenceKernels::new();
    let logits: Vec<f64> = (0..12).map(|i| f64::from(i * 7 % 12) / 3.0 - 2.0).collect();
    let classes = Targets::Classes(vec![2, -100, 0, 1]);
    let weighted = |label_smoothing| Loss { class_weights: Some(vec![0.5, 1.0, 2.5]), label_smoothing };
    let fractions = (0..12).map(|i| i as f32 / 11.0).collect();
    let numbers = (0..12).map(|i| i as f32 - 5.0).collect();
    let cases = [
        (Loss::default(), classes.clone()),
        (weighted(0.0), classes.clone()),
        (weighted(0.2), classes.clone()),
        (Loss { class_weights: None, label_smoothing: 0.1 }, classes),
        (Loss::default(), Targets::Probabilities(fractions)),
        (Loss::default(), Targets::Numbers(numbers)),
    ];
    for (loss, targets) in cases {
        let value = |logits: &[f64]| {
            let tensor = kernels.pool().from_slice(logits, &[4, 3]);
            let sum = loss.value(&kernels, &tensor, &targets);
            assert!((sum.weight - loss.weight(&targets)).abs() < 1e-12, "the weight is known before the outputs are");
            sum.sum
        };
        let tensor = kernels.pool().from_slice(&logits, &[4, 3]);
        let scale = 0.37;
        let analytic = loss.gradient(&kernels, &tensor, &targets, scale).1.to_vec_f64();
        let numeric = |i: usize| {
            let at = |offset: f64| {
                let mut moved = logits.clone();
                moved[i] += offset;
                value(&moved)
            };
            scale * (8.0 * (at(1e-3) - at(-1e-3)) - (at(2e-3) - at(-2e-3))) / 12e-3
        };
        let numeric: Vec<f64> = (0..12).map(numeric).collect();
        let error = relative_difference(&analytic, &numeric, 1e-4);
        assert!(error <= 1e-6, "{loss:?} {targets:?}: relative error {error:.2e}");
        assert_eq!(tensor.dtype(), DType::F64);
    }
}
