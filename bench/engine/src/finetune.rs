//! Fine-tuning a classifier of RoBERTa-base's shape on tokenised tweets.

use std::path::PathBuf;

use anyhow::Context;
use model::{Encoder, Gradients, Loss, ModelConfig, Pass, Randomness, Sequence, Tape, Targets, Weights};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tensor::DType;
use train::{Adamw, AdamwConfig};

use crate::Precision;
use crate::protocol::Steps;
use crate::timed::TimedKernels;

const CONFIG: &str = r#"{"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta",
    "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1,
    "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "id2label": {"0": "negative", "1": "neutral", "2": "positive"}}"#;

#[derive(clap::Args)]
pub struct Args {
    /// Tokenised tweets, one JSON object a line: {"label": 0, "ids": [0, 713, 2]}
    #[arg(long)]
    rows: PathBuf,
    /// Examples of one step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Type of activations and working weights
    #[arg(long, value_enum, default_value = "f32")]
    precision: Precision,
}

#[derive(Deserialize)]
struct Row {
    label: i32,
    ids: Vec<u32>,
}

pub struct Finetune<'a> {
    kernels: &'a TimedKernels,
    rows: Vec<Row>,
    batch: usize,
    next: usize,
    dtype: DType,
    encoder: Encoder,
    weights: Weights,
    gradients: Gradients,
    optimizer: Adamw,
    tokens: usize,
    loss: f64,
}

impl<'a> Finetune<'a> {
    pub fn new(args: &Args, kernels: &'a TimedKernels) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(&args.rows).with_context(|| format!("cannot read {}", args.rows.display()))?;
        let rows: Vec<Row> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        anyhow::ensure!(rows.len() >= args.batch, "{} holds less than one batch", args.rows.display());
        let encoder = Encoder::new(ModelConfig::parse(CONFIG)?);
        let mut weights = Weights::initialised(encoder.descriptors(), kernels, 0);
        let dtype = args.precision.dtype();
        if dtype != DType::F32 {
            weights.keep_working_copies(kernels, dtype);
        }
        let gradients = Gradients::new(&weights, kernels, |_| true);
        let config = AdamwConfig { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01, clip_norm: Some(1.0) };
        let optimizer = Adamw::new(config, &weights, &gradients, kernels);
        let (batch, next, tokens, loss) = (args.batch, 0, 0, 0.0);
        Ok(Self { kernels, rows, batch, next, dtype, encoder, weights, gradients, optimizer, tokens, loss })
    }
}

impl Steps for Finetune<'_> {
    fn step(&mut self) -> anyhow::Result<usize> {
        if self.next + self.batch > self.rows.len() {
            self.next = 0;
        }
        let rows = &self.rows[self.next..self.next + self.batch];
        self.next += self.batch;
        let sequences = rows.iter().zip(0..).map(|(row, identity)| {
            let ids = &row.ids;
            Sequence { ids, first_segment: ids.len(), identity }
        });
        let batch = model::Batch::pack(&self.encoder.config().encoder, sequences);
        let targets = Targets::Classes(rows.iter().map(|row| row.label).collect());
        let (kernels, step) = (self.kernels, self.optimizer.step() + 1);
        let randomness = Some(Randomness { seed: 0, step });
        let pass = Pass { kernels, weights: &self.weights, batch: &batch, dtype: self.dtype, randomness };

        self.gradients.begin();
        let mut tape = Tape::training(pass, &self.gradients);
        let logits = self.encoder.forward(&mut tape);
        let loss = Loss::default();
        let weight = loss.weight(&targets);
        let (sum, gradient) = loss.gradient(kernels, &logits.tensor, &targets, 1.0 / weight);
        tape.backward(&logits, gradient, &mut self.gradients);
        self.gradients.finish(kernels);
        let norm = Adamw::gradient_norm(&self.gradients, kernels);
        self.optimizer.update(&mut self.weights, &self.gradients, norm, 2e-5, kernels);
        self.tokens += batch.tokens();
        self.loss = sum.sum / weight;
        Ok(rows.len())
    }

    fn details(&mut self) -> Map<String, Value> {
        let tokens = std::mem::take(&mut self.tokens);
        Map::from_iter([("tokens".into(), json!(tokens)), ("loss".into(), json!(self.loss))])
    }
}
