//! Inference of a classifier of a known model's shape, with random weights: the latency of a fixed batch, or throughput on
//! texts of mixed lengths.

use std::path::{Path, PathBuf};

use anyhow::Context;
use model::{Batch, Encoder, InferenceDtype, ModelConfig, Pass, Sequence, Tape, Weights};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tensor::{DType, Stream};

use crate::protocol::Steps;
use crate::timed::TimedKernels;

#[derive(clap::Args)]
pub struct Args {
    /// Whose shape the model has
    #[arg(long, value_enum)]
    shape: Shape,
    /// Type of the weights: f32, bf16 or int8
    #[arg(long, default_value_t)]
    dtype: InferenceDtype,
    /// Sequences of a batch of one length
    #[arg(long, default_value_t = 1, requires = "length")]
    batch: usize,
    /// Tokens of each of its sequences
    #[arg(long, conflicts_with = "rows")]
    length: Option<usize>,
    /// Tokenised texts, one JSON object a line: {"ids": [0, 713, 2]}; ids beyond the vocabulary of the shape are taken modulo
    /// its size
    #[arg(long, required_unless_present = "length")]
    rows: Option<PathBuf>,
    /// Most tokens of a batch of texts, which are taken in the order of the file
    #[arg(long, default_value_t = 4096)]
    max_batch_tokens: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Shape {
    Minilm,
    Distilbert,
    RobertaBase,
}

impl Shape {
    fn config(self) -> anyhow::Result<ModelConfig> {
        let (architecture, kind, vocabulary, hidden, layers, positions) = match self {
            Shape::Minilm => ("Bert", "bert", 30_522, 384, 6, 512),
            Shape::Distilbert => ("DistilBert", "distilbert", 30_522, 768, 6, 512),
            Shape::RobertaBase => ("Roberta", "roberta", 50_265, 768, 12, 514),
        };
        let config = json!({
            "architectures": [format!("{architecture}ForSequenceClassification")], "model_type": kind,
            "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 12,
            "intermediate_size": 4 * hidden, "max_position_embeddings": positions,
            "type_vocab_size": if kind == "bert" { 2 } else { 1 }, "pad_token_id": if kind == "roberta" { 1 } else { 0 },
            "num_labels": 3,
        });
        Ok(ModelConfig::parse(&config.to_string())?)
    }
}

#[derive(Deserialize)]
struct Row {
    ids: Vec<u32>,
}

pub struct Infer<'a> {
    kernels: &'a TimedKernels,
    encoder: Encoder,
    weights: Weights,
    batches: Vec<Batch>,
    next: usize,
    activations: DType,
    tokens: usize,
}

impl<'a> Infer<'a> {
    pub fn new(args: &Args, kernels: &'a TimedKernels) -> anyhow::Result<Self> {
        let encoder = Encoder::new(args.shape.config()?);
        let config = &encoder.config().encoder;
        let (longest, vocabulary) = (config.max_tokens(), config.vocab_size as u32);
        let texts = match (&args.rows, args.length) {
            (Some(rows), _) => read_rows(rows, vocabulary, longest)?,
            (None, Some(length)) => random_texts(args.batch, length, vocabulary),
            (None, None) => anyhow::bail!("give --length or --rows"),
        };
        let length = texts.iter().map(Vec::len).max().unwrap_or(0);
        anyhow::ensure!(length > 0, "there is no token to work on");
        anyhow::ensure!(length <= longest, "--length {length} is more than the {longest} tokens of the shape");
        let budget = if args.rows.is_some() { args.max_batch_tokens } else { usize::MAX };
        let batches = cut(&texts, budget).map(|texts| pack(&encoder, texts)).collect();
        let mut weights = Weights::initialised(encoder.descriptors(), kernels, 0);
        weights.for_inference(kernels, &encoder.packable(), args.dtype);
        Ok(Self { kernels, encoder, weights, batches, next: 0, activations: args.dtype.activations(), tokens: 0 })
    }
}

/// Texts of a batch: as many as the budget holds, at least one.
fn cut(texts: &[Vec<u32>], budget: usize) -> impl Iterator<Item = &[Vec<u32>]> {
    let mut rest = texts;
    std::iter::from_fn(move || {
        let mut tokens = 0;
        let fits = |text: &&Vec<u32>| {
            tokens += text.len();
            tokens <= budget
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (batch, others) = rest.split_at_checked(count)?;
        rest = others;
        Some(batch)
    })
}

fn pack(encoder: &Encoder, texts: &[Vec<u32>]) -> Batch {
    let sequences = texts.iter().map(|ids| Sequence { ids, first_segment: ids.len(), identity: 0 });
    Batch::pack(&encoder.config().encoder, sequences)
}

fn random_texts(count: usize, length: usize, vocabulary: u32) -> Vec<Vec<u32>> {
    let id = |text: usize, place: usize| Stream::new(0, 0, place as u32).word(text as u64, 0) % vocabulary;
    (0..count).map(|text| (0..length).map(|place| id(text, place)).collect()).collect()
}

fn read_rows(path: &Path, vocabulary: u32, longest: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = text.lines().enumerate().map(|(line, row)| {
        let row: Row = serde_json::from_str(row).with_context(|| format!("{} line {}", path.display(), line + 1))?;
        Ok(row.ids.into_iter().take(longest).map(|id| id % vocabulary).collect())
    });
    rows.collect()
}

impl Steps for Infer<'_> {
    fn step(&mut self) -> anyhow::Result<usize> {
        let batch = &self.batches[self.next];
        self.next = (self.next + 1) % self.batches.len();
        let pass =
            Pass { kernels: self.kernels, weights: &self.weights, batch, dtype: self.activations, randomness: None };
        let logits = self.encoder.forward(&mut Tape::inference(pass)).tensor;
        anyhow::ensure!(logits.to_vec_f32().iter().all(|logit| logit.is_finite()), "a logit is not finite");
        self.tokens += batch.tokens();
        Ok(batch.sequences())
    }

    fn details(&mut self) -> Map<String, Value> {
        let tokens = std::mem::take(&mut self.tokens);
        let weights_bytes: usize = self.weights.ids().map(|id| self.weights.get(id).bytes()).sum();
        Map::from_iter([("tokens".into(), json!(tokens)), ("weights_bytes".into(), json!(weights_bytes))])
    }
}
