//! The routes of text-embeddings-inference: `/embed`, `/predict`, `/info`, `/health`, and `/`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use model::Pooling;
use model::scores::ScoreFunction;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::app::{App, Arrival, Inputs};
use super::invocations::{refuse_unsupported, texts_of};
use super::parameters::{LabelForm, Side};
use super::sagemaker::target_model;
use super::{body, sagemaker};
use crate::failure::{ErrorBody, Failure};
use crate::input::{Input, InputOptions};
use crate::task::classification::{Label, labels};
use crate::task::{Item, Task, items};

/// Whether the server answers; the same as `/ping`.
#[utoipa::path(get, path = "/health", tag = "text-embeddings-inference", responses(
    (status = 200, description = "Ready"),
    (status = 503, description = "Loading, or shutting down", body = ErrorBody),
))]
pub async fn health(State(app): State<Arc<App>>) -> Result<StatusCode, Failure> {
    app.ready().map(|()| StatusCode::OK)
}

/// Texts to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbedRequest {
    /// A text, or a list of texts.
    #[schema(value_type = TextsSchema)]
    inputs: Value,
    /// Whether embeddings have length 1; by default as the model directory says.
    normalize: Option<bool>,
    /// Whether texts that are too long are cut.
    truncate: Option<bool>,
    /// The end that is cut.
    truncation_direction: Option<Side>,
    /// Refused, for an embedding without it is another one.
    #[schema(ignore)]
    prompt_name: Option<String>,
    /// Refused.
    #[schema(ignore)]
    dimensions: Option<Value>,
}

/// A text or several.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it only describes the JSON")]
#[serde(untagged)]
pub(super) enum TextsSchema {
    /// One.
    Text(String),
    /// Several.
    Texts(TextListSchema),
}

/// Several texts.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1)]
pub(super) struct TextListSchema(Vec<String>);

/// An embedding of every text, or why there is none.
#[derive(Serialize, ToSchema)]
pub struct EmbedResponse(Vec<Item<Vec<f32>>>);

/// Embeds texts: one embedding for each.
#[utoipa::path(post, path = "/embed", tag = "text-embeddings-inference", request_body = EmbedRequest,
    responses((status = 200, description = "The embeddings", body = EmbedResponse), super::Failures))]
pub async fn embed(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, Failure> {
    let served = app.model(target_model(request.headers())?.as_deref(), Task::FeatureExtraction, "/embed")?;
    let request: EmbedRequest = body::request(&app, &arrival, request).await?;
    refuse_unsupported(request.prompt_name.as_deref(), request.dimensions.as_ref())?;
    let options = InputOptions {
        normalize: request.normalize,
        truncate: request.truncate,
        cut: request.truncation_direction.map(Into::into).unwrap_or_default(),
        ..InputOptions::default()
    };
    let answers = app.answer(&arrival, &served, texts_of(request.inputs, "inputs")?, &options).await?;
    let embeddings = items(answers.into_iter().map(|answer| Ok(answer?.rows.values)).collect())?;
    Ok(body::respond(&EmbedResponse(embeddings)))
}

/// Texts to label.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictRequest {
    /// A text; a pair as a list of two texts; or a list of such lists of one or two texts each.
    #[schema(value_type = SequencesSchema)]
    inputs: Value,
    /// Logits instead of probabilities.
    #[serde(default)]
    raw_scores: bool,
    /// Whether texts that are too long are cut.
    truncate: Option<bool>,
    /// The end that is cut.
    truncation_direction: Option<Side>,
}

/// What `/predict` takes.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it only describes the JSON")]
#[serde(untagged)]
pub(super) enum SequencesSchema {
    /// One text.
    Text(String),
    /// One text, or a pair.
    Pair(SequenceSchema),
    /// Several.
    Batch(SequenceListSchema),
}

/// One text, or a pair.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1, max_items = 2)]
pub(super) struct SequenceSchema(Vec<String>);

/// Several of them.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1)]
pub(super) struct SequenceListSchema(Vec<SequenceSchema>);

/// The labels of one input, or of several.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum PredictResponse {
    /// Of one.
    One(Vec<Label>),
    /// Of several.
    Several(Vec<Item<Vec<Label>>>),
}

/// Labels texts: all labels of each, the best first.
#[utoipa::path(post, path = "/predict", tag = "text-embeddings-inference", request_body = PredictRequest,
    responses((status = 200, description = "The labels", body = PredictResponse), super::Failures))]
pub async fn predict(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, Failure> {
    let served = app.model(target_model(request.headers())?.as_deref(), Task::TextClassification, "/predict")?;
    let request: PredictRequest = body::request(&app, &arrival, request).await?;
    let options = InputOptions {
        truncate: request.truncate,
        cut: request.truncation_direction.map(Into::into).unwrap_or_default(),
        ..InputOptions::default()
    };
    let inputs = sequences_of(request.inputs)?;
    let listed = inputs.list.is_some();
    let answers = app.answer(&arrival, &served, inputs, &options).await?;
    let config = served.engine()?.config();
    let function = request.raw_scores.then_some(ScoreFunction::None);
    let of = |answer: Result<_, Failure>| Ok(labels(config, &answer?, function, usize::MAX));
    let mut several = items(answers.into_iter().map(of).collect())?;
    let response = match several.as_mut_slice() {
        [Item::Done(only)] if !listed => PredictResponse::One(std::mem::take(only)),
        _ => PredictResponse::Several(several),
    };
    Ok(body::respond(&response))
}

/// A text, a list of one or two texts (a pair), or a list of such lists.
fn sequences_of(value: Value) -> Result<Inputs, Failure> {
    match value {
        Value::Array(list) if list.iter().any(Value::is_array) => {
            let each = list.into_iter().enumerate().map(|(i, value)| sequence_of(value, &format!("inputs[{i}]")));
            Ok(Inputs { each: each.collect(), list: Some("inputs") })
        }
        Value::Array(list) if list.is_empty() => Ok(Inputs { each: Vec::new(), list: Some("inputs") }),
        Value::Array(list) if list.len() > 2 => {
            let problem = "has more than two texts: two are a pair; send a batch as [[text], [text], ...]";
            Err(Failure::invalid("inputs", problem))
        }
        value => Ok(Inputs::one(sequence_of(value, "inputs")?)),
    }
}

fn sequence_of(value: Value, field: &str) -> Result<Input, Failure> {
    let texts = match value {
        Value::String(text) => return Ok(Input::text(text)),
        Value::Array(texts) => texts,
        _ => return Err(Failure::invalid(field, "must be a text, or a list of one or two texts")),
    };
    let text = |value: &Value| value.as_str().map(String::from);
    match texts.iter().map(text).collect::<Option<Vec<_>>>().as_deref() {
        Some([text]) => Ok(Input::text(text)),
        Some([text, pair]) => Ok(Input { text: text.clone(), pair: Some(pair.clone()) }),
        _ => Err(Failure::invalid(field, "must be a list of one or two texts")),
    }
}

/// Answers texts by the model's task, in the form of Hugging Face's Inference API.
///
/// As `/invocations`, but text classification has a list of labels for every text, of all labels where `top_k` is absent.
#[utoipa::path(post, path = "/", tag = "text-embeddings-inference", request_body = super::invocations::InvocationRequest,
    responses((status = 200, description = "The answers", body = super::invocations::InvocationResponse), super::Failures))]
pub async fn root(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, Failure> {
    sagemaker::invoke(&app, &arrival, None, request, LabelForm::Lists).await
}

/// What is served, and its limits.
#[derive(Debug, Serialize, ToSchema)]
pub struct Info {
    /// Name of the first model.
    model_id: String,
    /// Always null: models are directories.
    model_sha: Option<String>,
    /// Arithmetic and storage.
    model_dtype: String,
    /// What the model is for.
    model_type: ModelType,
    /// Requests at a time; more wait for a connection.
    max_concurrent_requests: usize,
    /// Longest input in tokens.
    max_input_length: usize,
    /// Tokens of a batch.
    max_batch_tokens: usize,
    /// Inputs of a request.
    max_client_batch_size: usize,
    /// Whether texts that are too long are cut where a request does not say.
    auto_truncate: bool,
    /// Of the server.
    version: &'static str,
}

/// What a model is for, by text-embeddings-inference's names.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelType {
    /// Embeddings.
    Embedding {
        /// How they are made.
        pooling: &'static str,
    },
    /// Labels of a text.
    Classifier {
        /// By index.
        #[schema(value_type = std::collections::BTreeMap<String, String>)]
        id2label: std::collections::BTreeMap<usize, String>,
    },
    /// Labels of tokens.
    TokenClassifier {
        /// By index.
        #[schema(value_type = std::collections::BTreeMap<String, String>)]
        id2label: std::collections::BTreeMap<usize, String>,
    },
}

/// Describes the first model.
#[utoipa::path(get, path = "/info", tag = "text-embeddings-inference",
    responses((status = 200, description = "The first model", body = Info), super::Failures))]
pub async fn info(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    app.ready()?;
    let served = app.registry.get(None)?;
    let engine = served.engine()?;
    let config = engine.config();
    let id2label = || config.labels.iter().cloned().enumerate().collect();
    let model_type = match Task::of(config) {
        Task::FeatureExtraction => {
            let pooling = match engine.recipe().pooling {
                Pooling::Mean => "mean",
                Pooling::Cls => "cls",
                Pooling::Tokens => "none",
            };
            ModelType::Embedding { pooling }
        }
        Task::TextClassification => ModelType::Classifier { id2label: id2label() },
        Task::TokenClassification => ModelType::TokenClassifier { id2label: id2label() },
    };
    let options = &app.options;
    Ok(body::respond(&Info {
        model_id: served.name.clone(),
        model_sha: None,
        model_dtype: engine.dtype().to_string(),
        model_type,
        max_concurrent_requests: options.limits.connections,
        max_input_length: config.encoder.max_tokens(),
        max_batch_tokens: options.engine.max_batch_tokens,
        max_client_batch_size: options.limits.inputs,
        auto_truncate: engine.truncates(),
        version: env!("CARGO_PKG_VERSION"),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_texts_are_a_pair_and_batches_are_lists_of_lists() {
        let of = |value| sequences_of(value).map(|inputs| (inputs.list.is_some(), inputs.each));
        let pair = Input { text: "a".into(), pair: Some("b".into()) };
        assert_eq!(of(json!(["a", "b"])).unwrap(), (false, vec![Ok(pair.clone())]));
        assert_eq!(of(json!([["a"], ["a", "b"]])).unwrap(), (true, vec![Ok(Input::text("a")), Ok(pair)]));
        assert!(of(json!(["a", "b", "c"])).unwrap_err().message.contains("[[text], [text], ...]"));
        let (_, each) = of(json!([["a"], [1], ["a", "b", "c"]])).unwrap();
        assert_eq!(each.iter().filter(|one| one.is_err()).count(), 2);
        assert_eq!(of(json!({"text": "a"})).unwrap_err().field.as_deref(), Some("inputs"));
    }
}
