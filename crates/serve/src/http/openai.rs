//! OpenAI's routes: `/v1/embeddings` and `/v1/models`, with its form of errors.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::app::{App, Arrival};
use super::body;
use super::invocations::texts_of;
use super::path::InPath;
use crate::failure::{ErrorBody, Failure};
use crate::input::InputOptions;
use crate::task::{Item, Task, items};

/// A failure in OpenAI's form.
pub struct OpenAiFailure(Failure);

impl From<Failure> for OpenAiFailure {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

/// `{"error": {...}}`
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenAiError {
    /// What went wrong.
    error: OpenAiErrorBody,
}

/// An error by OpenAI's names.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenAiErrorBody {
    /// What is wrong and what to do.
    message: String,
    /// `invalid_request_error` for a client's mistake.
    r#type: &'static str,
    /// The field at fault.
    param: Option<String>,
    /// As `error_type` on other routes.
    code: &'static str,
}

impl IntoResponse for OpenAiFailure {
    fn into_response(self) -> Response {
        let failure = &self.0;
        let kind = match failure.kind.status() {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        let error = OpenAiErrorBody {
            message: failure.message.to_string(),
            r#type: kind,
            param: failure.field.clone(),
            code: failure.kind.code(),
        };
        super::failed(failure, body::respond(&OpenAiError { error }))
    }
}

/// A failure outside of handlers, in the form that clients of a path can read.
pub fn failure_at(path: &str, failure: Failure) -> Response {
    if path.starts_with("/v1/") { OpenAiFailure(failure).into_response() } else { failure.into_response() }
}

/// Texts to embed.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingsRequest {
    /// A text, or a list of texts.
    #[schema(value_type = super::tei::TextsSchema)]
    input: Value,
    /// Name of a model.
    model: String,
    /// `float` or `base64` (little-endian `f32`).
    #[serde(default)]
    encoding_format: EncodingFormat,
    /// Must be the model's own width, where given.
    #[schema(minimum = 1)]
    dimensions: Option<usize>,
    /// For the caller's own records; not used.
    #[allow(dead_code, reason = "accepted and without effect")]
    user: Option<String>,
}

/// How embeddings are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// Numbers.
    #[default]
    Float,
    /// Base64 of little-endian `f32`.
    Base64,
}

/// The embeddings of a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingsResponse {
    /// Always `list`.
    object: &'static str,
    /// One for each input, in their order.
    data: Vec<EmbeddingObject>,
    /// The model that made them.
    model: String,
    /// Tokens.
    usage: Usage,
}

/// One embedding, or why there is none.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingObject {
    /// Always `embedding`.
    object: &'static str,
    /// The input's position.
    index: usize,
    /// Null for an input that failed.
    embedding: Option<Vector>,
    /// Why the input failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
}

/// An embedding as asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// Numbers.
    Float(Vec<f32>),
    /// Base64 of little-endian `f32`.
    Base64(String),
}

/// Tokens of a request.
#[derive(Debug, Serialize, ToSchema)]
pub struct Usage {
    /// Of all inputs, control tokens included.
    prompt_tokens: usize,
    /// The same.
    total_tokens: usize,
}

/// Embeds texts.
#[utoipa::path(post, path = "/v1/embeddings", tag = "OpenAI", request_body = EmbeddingsRequest,
    responses((status = 200, description = "The embeddings", body = EmbeddingsResponse), super::OpenAiFailures))]
pub async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, OpenAiFailure> {
    app.ready()?;
    let request: EmbeddingsRequest = body::request(&app, &arrival, request).await?;
    let served = app.model(Some(&request.model), Task::FeatureExtraction, "/v1/embeddings")?;
    let width = served.engine()?.config().encoder.hidden;
    if let Some(asked) = request.dimensions.filter(|&asked| asked != width) {
        let problem = format!("is {asked}, but this model's embeddings have {width}");
        return Err(Failure::invalid("dimensions", problem).into());
    }
    let inputs = texts_of(without_ids(request.input)?, "input")?;
    let answers = app.answer(&arrival, &served, inputs, &InputOptions::default()).await?;
    let tokens = answers.iter().flatten().map(|answer| answer.encoding.ids.len()).sum();
    let vectors = items(answers.into_iter().map(|answer| Ok(answer?.rows.values)).collect())?;
    let object = |(index, item)| {
        let (embedding, error) = match item {
            Item::Done(values) => (Some(written(values, request.encoding_format)), None),
            Item::Failed(error) => (None, Some(error)),
        };
        EmbeddingObject { object: "embedding", index, embedding, error }
    };
    Ok(body::respond(&EmbeddingsResponse {
        object: "list",
        data: vectors.into_iter().enumerate().map(object).collect(),
        model: served.name.clone(),
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    }))
}

/// Token ids are of some other model's vocabulary, so they are refused instead of misread.
fn without_ids(input: Value) -> Result<Value, Failure> {
    let ids = |value: &Value| match value {
        Value::Array(list) => list.first().is_some_and(Value::is_number),
        _ => false,
    };
    if ids(&input) || input.as_array().is_some_and(|list| list.iter().any(ids)) {
        let problem = "holds token ids, whose vocabulary is not this model's; send texts";
        return Err(Failure::invalid("input", problem));
    }
    Ok(input)
}

fn written(values: Vec<f32>, format: EncodingFormat) -> Vector {
    match format {
        EncodingFormat::Float => Vector::Float(values),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
            Vector::Base64(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
    }
}

/// The models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    object: &'static str,
    /// In the order of their arrival.
    data: Vec<ModelObject>,
}

/// One model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelObject {
    /// What requests call it.
    id: String,
    /// Always `model`.
    object: &'static str,
    /// When it was loaded, in seconds since 1970.
    created: u64,
    /// Always `trainyard`.
    owned_by: &'static str,
}

impl From<&crate::served::Served> for ModelObject {
    fn from(served: &crate::served::Served) -> Self {
        let created = served.loaded.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { id: served.name.clone(), object: "model", created, owned_by: "trainyard" }
    }
}

/// Lists the models.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI",
    responses((status = 200, description = "The models", body = ModelList), super::OpenAiFailures))]
pub async fn models(State(app): State<Arc<App>>) -> Response {
    let data = app.registry.all().iter().map(|served| served.as_ref().into()).collect();
    body::respond(&ModelList { object: "list", data })
}

/// Describes a model.
#[utoipa::path(get, path = "/v1/models/{name}", tag = "OpenAI",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "The model", body = ModelObject), super::OpenAiFailures))]
pub async fn model(State(app): State<Arc<App>>, InPath(name): InPath<String>) -> Result<Response, OpenAiFailure> {
    let served = app.registry.get(Some(&name))?;
    Ok(body::respond(&ModelObject::from(served.as_ref())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::failure::Kind;

    #[test]
    fn token_ids_are_refused() {
        assert!(without_ids(json!("a")).is_ok());
        assert!(without_ids(json!(["a", "b"])).is_ok());
        for ids in [json!([1, 2]), json!([[1, 2], [3]])] {
            assert_eq!(without_ids(ids).unwrap_err().kind, Kind::Invalid);
        }
    }

    #[test]
    fn base64_is_little_endian_f32() {
        let Vector::Base64(text) = written(vec![1.0, -2.0], EncodingFormat::Base64) else { panic!("no base64") };
        assert_eq!(text, "AACAPwAAAMA=");
    }
}
