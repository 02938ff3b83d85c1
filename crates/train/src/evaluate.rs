//! Evaluation of a model on a data set, and prediction of single texts.

use model::config::{Head, Problem};
use model::scores::{LabelScore, ScoreFunction, best, ranked};
use model::{Batch, Loss, Model, Sequence};
use serde::Serialize;
use tensor::{DType, Kernels};

use crate::batching::prepare;
use crate::data::{Dataset, LabelMap, PartCounts, load_for_eval};
use crate::encode::{TokenizerEncode, refuse_empty};
use crate::error::TrainError;
use crate::job::{BatchLimit, DataTable, Task};
use crate::metrics::{Evaluation, Metric, Report};
use crate::sampler::Sampler;

/// Tokens of one batch of an evaluation: enough to keep the kernels busy, little memory.
const TOKENS_PER_BATCH: usize = 4096;

/// The task that a model's head was made for.
pub fn task_of(head: Head) -> Option<Task> {
    match head {
        Head::Sequence(Problem::SingleLabel) => Some(Task::Classification),
        Head::Sequence(Problem::MultiLabel) => Some(Task::MultiLabel),
        Head::Sequence(Problem::Regression) => Some(Task::Regression),
        Head::Token => Some(Task::TokenClassification),
        Head::Embedding => None,
    }
}

/// The head that a task needs.
pub fn head_of(task: Task) -> Head {
    match task {
        Task::Classification => Head::Sequence(Problem::SingleLabel),
        Task::MultiLabel => Head::Sequence(Problem::MultiLabel),
        Task::Regression => Head::Sequence(Problem::Regression),
        Task::TokenClassification => Head::Token,
    }
}

/// Metrics of `model` over all of `data`.
pub fn evaluate(model: &Model, data: &Dataset, task: Task, loss: &Loss, kernels: &dyn Kernels, dtype: DType) -> Report {
    let config = model.encoder.config();
    let outputs = config.outputs();
    let names: &[String] = if task == Task::Regression { &[] } else { &config.labels };
    let mut evaluation = Evaluation::new(task, names);
    let mut sampler = Sampler::new(data.lengths(), BatchLimit::Tokens(TOKENS_PER_BATCH), false, 0);
    while sampler.state().epoch == 0 && !data.is_empty() {
        let indices = sampler.next_batch().examples;
        let prepared = prepare(data, &indices, 0, task, outputs, &config.encoder);
        let logits = model.infer(kernels, &prepared.batch, dtype);
        let sum = loss.value(kernels, &logits, &prepared.targets);
        evaluation.add_loss(sum.sum, sum.weight);
        let logits = logits.to_vec_f32();
        let mut row = 0;
        for &index in &indices {
            let example = data.example(index);
            let rows = if task == Task::TokenClassification { example.tokens.len() } else { 1 };
            evaluation.add(example.target, &logits[row * outputs..(row + rows) * outputs]);
            row += rows;
        }
    }
    evaluation.report()
}

/// Evaluates `model` on the files that `source` names, read as `table` says, with activations of type `dtype`.
pub fn evaluate_source(
    model: &Model,
    source: &str,
    table: &DataTable,
    dtype: DType,
    kernels: &dyn Kernels,
) -> Result<(Report, PartCounts), TrainError> {
    let config = model.encoder.config();
    let task = task_of(config.head).ok_or_else(|| {
        TrainError::Unfit("this model makes embeddings and has no head to evaluate; fine-tune it first".into())
    })?;
    if task == Task::Regression && config.outputs() != 1 {
        let text = format!("this regression model has {} outputs; one can be evaluated", config.outputs());
        return Err(TrainError::Unfit(text));
    }
    let labels = match task {
        Task::Regression => LabelMap::default(),
        _ => LabelMap::new(config.labels.clone())?,
    };
    let max_tokens = limited_tokens(table.max_tokens, config.encoder.max_tokens())?;
    let encode = TokenizerEncode { tokenizer: &model.tokenizer, max_tokens };
    let (data, counts) = load_for_eval(source, table, task, &labels, &encode)?;
    let report = evaluate(model, &data, task, &Loss::default(), kernels, dtype);
    match report.value(Metric::Loss) {
        Some(loss) if !loss.is_finite() => Err(damaged("loss on these data")),
        _ => Ok((report, counts)),
    }
}

/// The longest sequence a job asks for, if the model can take it.
pub fn limited_tokens(asked: Option<usize>, most: usize) -> Result<usize, TrainError> {
    match asked {
        Some(asked) if asked > most => {
            Err(TrainError::Unfit(format!("data.max_tokens is {asked}, but this model takes at most {most} tokens")))
        }
        asked => Ok(asked.unwrap_or(most)),
    }
}

/// What a model says of one text.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Prediction {
    /// Labels with their scores, the highest first. For regression one entry, the score being the number.
    Labels {
        /// The text.
        text: String,
        /// Softmax probabilities, or sigmoids for multi-label models.
        labels: Vec<LabelScore>,
    },
    /// The most probable label of every token.
    Tokens {
        /// The text.
        text: String,
        /// One for every token that is not a special one.
        tokens: Vec<TokenLabel>,
    },
    /// An embedding.
    Embedding {
        /// The text.
        text: String,
        /// `[hidden]`
        embedding: Vec<f32>,
    },
}

/// A token, where it stands and its label.
#[derive(Clone, Debug, Serialize)]
pub struct TokenLabel {
    /// First byte in the text.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
    /// The label.
    pub label: String,
    /// Its probability.
    pub score: f64,
}

/// Predictions for texts, in their order, and how many of the texts were cut to fit the model. Texts are packed into
/// batches, which does not change the results; activations are of type `dtype`.
pub fn predict(
    model: &Model,
    texts: &[String],
    dtype: DType,
    kernels: &dyn Kernels,
) -> Result<(Vec<Prediction>, usize), TrainError> {
    let config = model.encoder.config();
    let most = config.encoder.max_tokens();
    let encodings = model.tokenizer.encode_batch(texts, most, kernels.threads())?;
    let truncated = encodings.iter().filter(|encoding| encoding.truncated).count();
    for (index, encoding) in encodings.iter().enumerate() {
        refuse_empty(encoding).map_err(|error| TrainError::Unfit(format!("text {}: {error}", index + 1)))?;
    }
    let lengths: Vec<u32> = encodings.iter().map(|encoding| encoding.ids.len() as u32).collect();
    let mut sampler = Sampler::new(lengths, BatchLimit::Tokens(TOKENS_PER_BATCH), false, 0);
    let mut predictions = Vec::with_capacity(texts.len());
    while predictions.len() < texts.len() {
        let indices = sampler.next_batch().examples;
        let sequences = indices.iter().map(|&index| {
            let ids = &encodings[index].ids;
            Sequence { ids, first_segment: ids.len(), identity: index as u64 }
        });
        let batch = Batch::pack(&config.encoder, sequences);
        let outputs = model.infer(kernels, &batch, dtype);
        let (columns, values) = (outputs.columns(), outputs.to_vec_f32());
        let mut rows = values.chunks_exact(columns);
        for &index in &indices {
            let (text, encoding) = (texts[index].clone(), &encodings[index]);
            let count = if config.head == Head::Token { encoding.ids.len() } else { 1 };
            let own: Vec<&[f32]> = rows.by_ref().take(count).collect();
            predictions.push(interpret(text, &own, &encoding.offsets, config)?);
        }
    }
    Ok((predictions, truncated))
}

fn interpret(
    text: String,
    rows: &[&[f32]],
    offsets: &[(usize, usize)],
    config: &model::ModelConfig,
) -> Result<Prediction, TrainError> {
    if rows.iter().any(|row| row.iter().any(|x| !x.is_finite())) {
        return Err(damaged("output"));
    }
    match config.head {
        Head::Embedding => Ok(Prediction::Embedding { text, embedding: rows[0].to_vec() }),
        Head::Token => {
            let tokens = rows.iter().zip(offsets).filter(|(_, (start, end))| start != end);
            let tokens = tokens.filter_map(|(row, &(start, end))| {
                let (label, score) = best(&ScoreFunction::Softmax.apply(row))?;
                Some(TokenLabel { start, end, label: config.labels[label].clone(), score })
            });
            Ok(Prediction::Tokens { text, tokens: tokens.collect() })
        }
        Head::Sequence(problem) => {
            let scores = ScoreFunction::of(problem).apply(rows[0]);
            Ok(Prediction::Labels { text, labels: ranked(&config.labels, scores) })
        }
    }
}

fn damaged(what: &str) -> TrainError {
    TrainError::Unfit(format!("the model's {what} is not finite (NaN or infinity): its weights are damaged"))
}
