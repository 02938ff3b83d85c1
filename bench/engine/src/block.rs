//! One post-LayerNorm transformer block, forward and backward, on sequences of one length.

use anyhow::Context;
use model::ops::{AddNorm, Attention, FeedForward, Linear, LinearParams, NormParams};
use model::{Batch, Gradients, Init, ParamDescr, ParamId, Pass, Tape, Weights};
use serde_json::{Map, Value, json};
use tensor::{Activation, AttentionShape, DType, Kernels, Stream, Tensor};

use crate::Precision;
use crate::protocol::Steps;
use crate::timed::TimedKernels;

const HIDDEN: usize = 768;
const WIDE: usize = 3072;
const HEADS: usize = 12;

#[derive(clap::Args)]
pub struct Args {
    /// SEQUENCESxLENGTH, as 4x512
    #[arg(long)]
    shape: String,
    /// Type of activations and working weights
    #[arg(long, value_enum, default_value = "f32")]
    precision: Precision,
}

pub struct Block<'a> {
    kernels: &'a TimedKernels,
    dtype: DType,
    weights: Weights,
    gradients: Gradients,
    batch: Batch,
    x: Tensor,
    upstream: Tensor,
    saved_bytes: usize,
}

/// Parameters in the order of `descriptors`.
const QKV: LinearParams = LinearParams { weight: ParamId(0), bias: ParamId(1) };
const OUT: LinearParams = LinearParams { weight: ParamId(2), bias: ParamId(3) };
const UP: LinearParams = LinearParams { weight: ParamId(4), bias: ParamId(5) };
const DOWN: LinearParams = LinearParams { weight: ParamId(6), bias: ParamId(7) };
const NORMS: [NormParams; 2] = [
    NormParams { gamma: ParamId(8), beta: ParamId(9), eps: 1e-12 },
    NormParams { gamma: ParamId(10), beta: ParamId(11), eps: 1e-12 },
];

fn descriptors() -> Vec<ParamDescr> {
    let descriptor = |name: &str, shape: &[usize], init| ParamDescr {
        name: name.into(),
        shape: shape.into(),
        init,
        decay: true,
        parts: Vec::new(),
    };
    let matrices = [("qkv", 3 * HIDDEN, HIDDEN), ("out", HIDDEN, HIDDEN), ("up", WIDE, HIDDEN), ("down", HIDDEN, WIDE)];
    let linear = matrices.into_iter().flat_map(|(name, rows, columns)| {
        [descriptor(name, &[rows, columns], Init::Normal(0.02)), descriptor(name, &[rows], Init::Zeros)]
    });
    let norms =
        (0..2).flat_map(|_| [descriptor("norm", &[HIDDEN], Init::Ones), descriptor("norm", &[HIDDEN], Init::Zeros)]);
    linear.chain(norms).collect()
}

impl<'a> Block<'a> {
    pub fn new(args: &Args, kernels: &'a TimedKernels) -> anyhow::Result<Self> {
        let (sequences, length) = args.shape.split_once('x').context("--shape must look like 4x512")?;
        let (sequences, length): (usize, usize) = (sequences.parse()?, length.parse()?);
        let tokens = sequences * length;
        let dtype = args.precision.dtype();
        let mut weights = Weights::initialised(&descriptors(), kernels, 0);
        if dtype != DType::F32 {
            weights.keep_working_copies(kernels, dtype);
        }
        let gradients = Gradients::new(&weights, kernels, |_| true);
        let random = |site: u32| {
            let stream = Stream::new(0, 1, site);
            let values: Vec<f32> = (0..(tokens * HIDDEN) as u64).map(|i| stream.normal(i, 0) as f32).collect();
            let mut tensor = kernels.pool().empty(dtype, &[tokens, HIDDEN]);
            tensor.copy_from_f32(&values);
            tensor
        };
        let batch = Batch {
            rows: (0..tokens as u64).collect(),
            offsets: (0..=sequences).map(|s| (s * length) as u32).collect(),
            ..Batch::default()
        };
        Ok(Self { kernels, dtype, weights, gradients, batch, x: random(0), upstream: random(1), saved_bytes: 0 })
    }
}

impl Steps for Block<'_> {
    fn step(&mut self) -> anyhow::Result<usize> {
        let pass = Pass {
            kernels: self.kernels,
            weights: &self.weights,
            batch: &self.batch,
            dtype: self.dtype,
            randomness: None,
        };
        let shape =
            AttentionShape { query_heads: HEADS, key_value_heads: HEADS, head_dim: HIDDEN / HEADS, causal: false };
        let linear = |params| Linear { params, activation: Activation::Identity };
        let add_norm = |norm| AddNorm { norm, dropout: 0.0, site: 0 };
        self.gradients.begin();
        let mut tape = Tape::training(pass, &self.gradients);
        let x = tape.input(self.x.clone(), true);
        let qkv = tape.run(linear(QKV), &[&x]);
        let context = tape.run(Attention { shape, dropout: 0.0, site: 0 }, &[&qkv]);
        let attended = tape.run(linear(OUT), &[&context]);
        let middle = tape.run(add_norm(NORMS[0]), &[&attended, &x]);
        let wide = tape.run(FeedForward { up: UP, down: DOWN, activation: Activation::Gelu }, &[&middle]);
        let y = tape.run(add_norm(NORMS[1]), &[&wide, &middle]);
        self.saved_bytes = tape.saved_bytes();
        drop((qkv, context, attended, middle, wide));
        tape.backward(&y, self.upstream.clone(), &mut self.gradients);
        Ok(self.batch.rows.len())
    }

    fn details(&mut self) -> Map<String, Value> {
        Map::from_iter([("saved_activation_bytes".into(), json!(self.saved_bytes))])
    }
}
