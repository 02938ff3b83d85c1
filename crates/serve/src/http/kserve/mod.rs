//! KServe's Open Inference Protocol, version 2, over HTTP: health, metadata and inference with BYTES inputs, as JSON or
//! with Triton's binary extension.

mod tensors;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::app::{App, Arrival, Inputs};
use super::body;
use super::content::Content;
use super::path::InPath;
use crate::engine::{Answer, Engine};
use crate::failure::{ErrorBody, Failure, Kind};
use crate::input::InputOptions;
use crate::task::classification::function_of;
use crate::task::entities::{Aggregation, entities};
use crate::task::{Task, some_done};
pub(super) use tensors::InferRequest;
use tensors::{InferResponse, Output};

/// The only version of every model.
const VERSION: &str = "1";
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The server.
#[derive(Serialize, ToSchema)]
pub struct ServerMetadata {
    name: &'static str,
    version: &'static str,
    extensions: [&'static str; 1],
}

/// Describes the server.
#[utoipa::path(get, path = "/v2", tag = "KServe v2",
    responses((status = 200, description = "The server", body = ServerMetadata), super::Failures))]
pub async fn server() -> Response {
    let extensions = ["binary_tensor_data"];
    body::respond(&ServerMetadata { name: "trainyard", version: env!("CARGO_PKG_VERSION"), extensions })
}

/// Whether the process is alive.
#[derive(Serialize, ToSchema)]
pub struct Live {
    live: bool,
}

/// Whether something answers.
#[derive(Serialize, ToSchema)]
pub struct Ready {
    ready: bool,
}

/// 200 while the process runs.
#[utoipa::path(get, path = "/v2/health/live", tag = "KServe v2",
    responses((status = 200, description = "Alive", body = Live)))]
pub async fn live() -> Response {
    body::respond(&Live { live: true })
}

/// 200 while the server answers.
#[utoipa::path(get, path = "/v2/health/ready", tag = "KServe v2", responses(
    (status = 200, description = "Ready", body = Ready),
    (status = 503, description = "Loading, or shutting down", body = ErrorBody),
))]
pub async fn ready(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    app.ready().map(|()| body::respond(&Ready { ready: true }))
}

/// A model, its inputs and outputs.
#[derive(Serialize, ToSchema)]
pub struct ModelMetadata {
    name: String,
    versions: [&'static str; 1],
    platform: &'static str,
    inputs: Vec<TensorMetadata>,
    outputs: Vec<TensorMetadata>,
}

/// A tensor of a model; -1 is any size.
#[derive(Serialize, ToSchema)]
pub struct TensorMetadata {
    name: &'static str,
    datatype: &'static str,
    shape: Vec<i64>,
}

/// Describes a model.
#[utoipa::path(get, path = "/v2/models/{name}", tag = "KServe v2",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "The model", body = ModelMetadata), super::Failures))]
pub async fn model(State(app): State<Arc<App>>, InPath(name): InPath<String>) -> Result<Response, Failure> {
    let served = app.registry.get(Some(&name))?;
    let config = served.engine()?.config();
    let tensor = |name, datatype, shape: &[i64]| TensorMetadata { name, datatype, shape: shape.into() };
    let (labels, hidden) = (config.labels.len() as i64, config.encoder.hidden as i64);
    let outputs = match Task::of(config) {
        Task::TextClassification => vec![
            tensor("label", "BYTES", &[-1]),
            tensor("score", "FP64", &[-1]),
            tensor("scores", "FP64", &[-1, labels]),
        ],
        Task::TokenClassification => vec![tensor("entities", "BYTES", &[-1])],
        Task::FeatureExtraction => vec![tensor("embedding", "FP32", &[-1, hidden])],
    };
    let inputs = vec![tensor("text", "BYTES", &[-1]), tensor("text_pair", "BYTES", &[-1])];
    Ok(body::respond(&ModelMetadata { name, versions: [VERSION], platform: "trainyard", inputs, outputs }))
}

/// As the model without its version, which is 1.
#[utoipa::path(get, path = "/v2/models/{name}/versions/{version}", tag = "KServe v2",
    params(("name" = String, Path, description = "Name of a model"), ("version" = String, Path, description = "1")),
    responses((status = 200, description = "The model", body = ModelMetadata), super::Failures))]
pub async fn model_version(
    app: State<Arc<App>>,
    InPath((name, version)): InPath<(String, String)>,
) -> Result<Response, Failure> {
    check_version(&version)?;
    model(app, InPath(name)).await
}

/// Whether a model answers.
#[utoipa::path(get, path = "/v2/models/{name}/ready", tag = "KServe v2",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "Ready", body = Ready), super::Failures))]
pub async fn model_ready(State(app): State<Arc<App>>, InPath(name): InPath<String>) -> Result<Response, Failure> {
    app.ready()?;
    app.registry.get(Some(&name)).map(|_| body::respond(&Ready { ready: true }))
}

/// As the model without its version, which is 1.
#[utoipa::path(get, path = "/v2/models/{name}/versions/{version}/ready", tag = "KServe v2",
    params(("name" = String, Path, description = "Name of a model"), ("version" = String, Path, description = "1")),
    responses((status = 200, description = "Ready", body = Ready), super::Failures))]
pub async fn version_ready(
    app: State<Arc<App>>,
    InPath((name, version)): InPath<(String, String)>,
) -> Result<Response, Failure> {
    check_version(&version)?;
    model_ready(app, InPath(name)).await
}

/// Answers texts in the input `text`, with the second texts of pairs in `text_pair`.
///
/// An input that fails leaves its row empty or zero and has its message in the output `error`, which is there only then.
#[utoipa::path(post, path = "/v2/models/{name}/infer", tag = "KServe v2",
    params(("name" = String, Path, description = "Name of a model")),
    request_body = InferRequest,
    responses((status = 200, description = "The outputs", body = InferResponse), super::Failures))]
pub async fn infer(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    InPath(name): InPath<String>,
    request: Request,
) -> Result<Response, Failure> {
    app.ready()?;
    let served = app.registry.get(Some(&name))?;
    let engine = served.engine()?;
    let (head, body) = request.into_parts();
    refuse_other_content(&head.headers)?;
    let bytes = body::read(&head.headers, body, app.options.limits.body_bytes, arrival.deadline).await?;
    let (json, binary) = match head.headers.get(HEADER_LENGTH) {
        None => (&bytes[..], &[][..]),
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            let Some(parts) = length.and_then(|length| bytes.split_at_checked(length)) else {
                let text = "must be the length of the JSON at the front of the body";
                return Err(Failure::invalid(HEADER_LENGTH.as_str(), text));
            };
            parts
        }
    };
    let request: InferRequest = body::json(json)?;
    request.check(output_names(Task::of(engine.config())))?;
    let inputs = request.inputs(binary)?;
    let texts: Vec<String> = inputs.iter().map(|input| input.text.clone()).collect();
    let inputs = Inputs { each: inputs.into_iter().map(Ok).collect(), list: Some("inputs") };
    let options = InputOptions { truncate: request.truncation()?, ..InputOptions::default() };
    let answers = app.answer(&arrival, &served, inputs, &options).await?;
    some_done(&answers)?;
    let outputs = request.wanted(outputs(engine, &texts, &answers));
    let (response, binary) = InferResponse::new(name, VERSION, request, outputs);
    let Some(binary) = binary else { return Ok(body::respond(&response)) };
    let mut bytes = serde_json::to_vec(&response).map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    let length = HeaderValue::from(bytes.len());
    bytes.extend(binary);
    let headers =
        [(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")), (HEADER_LENGTH, length)];
    Ok((headers, bytes).into_response())
}

/// As the model without its version, which is 1.
#[utoipa::path(post, path = "/v2/models/{name}/versions/{version}/infer", tag = "KServe v2",
    params(("name" = String, Path, description = "Name of a model"), ("version" = String, Path, description = "1")),
    request_body = InferRequest,
    responses((status = 200, description = "The outputs", body = InferResponse), super::Failures))]
pub async fn infer_version(
    app: State<Arc<App>>,
    arrival: Extension<Arrival>,
    InPath((name, version)): InPath<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    check_version(&version)?;
    infer(app, arrival, InPath(name), request).await
}

/// JSON, or JSON with binary tensors behind it.
fn refuse_other_content(headers: &axum::http::HeaderMap) -> Result<(), Failure> {
    let binary = headers.get(header::CONTENT_TYPE).is_some_and(|content| content == "application/octet-stream");
    if binary || Content::of_request(headers)? == Content::Json {
        return Ok(());
    }
    let text = "this route takes application/json, or application/octet-stream with tensors behind the JSON";
    Err(Failure::new(Kind::MediaType, text).in_field("content-type"))
}

fn check_version(version: &str) -> Result<(), Failure> {
    if version == VERSION {
        return Ok(());
    }
    Err(Failure::new(
        Kind::NoModel,
        format!("there is no version `{version}`; every model has version {VERSION} alone"),
    ))
}

/// What a model of a task gives; `error` besides, where an input failed.
fn output_names(task: Task) -> &'static [&'static str] {
    match task {
        Task::TextClassification => &["label", "score", "scores"],
        Task::TokenClassification => &["entities"],
        Task::FeatureExtraction => &["embedding"],
    }
}

fn outputs(engine: &Engine, texts: &[String], answers: &[Result<Answer, Failure>]) -> Vec<Output> {
    let config = engine.config();
    let mut outputs = match Task::of(config) {
        Task::TextClassification => {
            let width = config.labels.len();
            let function = function_of(config);
            let scores: Vec<Vec<f64>> = answers
                .iter()
                .map(|answer| match answer {
                    Ok(answer) => answer.rows.iter().next().map_or_else(Vec::new, |row| function.apply(row)),
                    Err(_) => vec![0.0; width],
                })
                .collect();
            let best = scores.iter().zip(answers).map(|(scores, answer)| {
                let best = answer.as_ref().ok().and_then(|_| model::scores::best(scores));
                best.map_or((String::new(), 0.0), |(i, score)| (config.labels[i].clone(), score))
            });
            let (labels, best): (Vec<String>, Vec<f64>) = best.unzip();
            vec![
                Output::bytes("label", labels),
                Output::fp64("score", vec![answers.len()], best),
                Output::fp64("scores", vec![answers.len(), width], scores.concat()),
            ]
        }
        Task::TokenClassification => {
            let ignored = ["O".to_string()];
            let of = |(answer, text): (&Result<Answer, Failure>, &String)| match answer {
                Ok(answer) => {
                    let found = entities(config, engine.tokenizer(), text, answer, Aggregation::Simple, &ignored);
                    serde_json::json!(found).to_string()
                }
                Err(_) => String::new(),
            };
            vec![Output::bytes("entities", answers.iter().zip(texts).map(of).collect())]
        }
        Task::FeatureExtraction => {
            let width = config.encoder.hidden;
            let row = |answer: &Result<Answer, Failure>| match answer {
                Ok(answer) => answer.rows.values.clone(),
                Err(_) => vec![0.0; width],
            };
            let values: Vec<f32> = answers.iter().flat_map(row).collect();
            vec![Output::fp32("embedding", vec![answers.len(), width], values)]
        }
    };
    if answers.iter().any(Result::is_err) {
        let text = |answer: &Result<Answer, Failure>| answer.as_ref().err().map(Failure::to_string).unwrap_or_default();
        outputs.push(Output::bytes(tensors::ERROR, answers.iter().map(text).collect()));
    }
    outputs
}
