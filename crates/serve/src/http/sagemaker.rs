//! The SageMaker container contract: `/ping`, `/invocations`, and the multi-model API.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path as Segment, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::{App, Arrival};
use super::body;
use super::content::Content;
use super::formats::{self, Decoded};
use super::invocations::{InvocationRequest, InvocationResponse, response_of};
use super::parameters::LabelForm;
use crate::failure::{ErrorBody, Failure, Kind};
use crate::options::{ModelSpec, MultiModel};
use crate::python;
use crate::served::Served;

const TARGET_MODEL: HeaderName = HeaderName::from_static("x-amzn-sagemaker-target-model");
const TARGET_VARIANT: HeaderName = HeaderName::from_static("x-amzn-sagemaker-target-variant");
const INVOKED_VARIANT: HeaderName = HeaderName::from_static("x-amzn-invoked-production-variant");
const CUSTOM_ATTRIBUTES: HeaderName = HeaderName::from_static("x-amzn-sagemaker-custom-attributes");

/// Whether the server answers.
///
/// 200 once all models are loaded and warm; 503 before that and while the server drains.
#[utoipa::path(get, path = "/ping", tag = "SageMaker", responses(
    (status = 200, description = "Ready"),
    (status = 503, description = "Loading, or shutting down", body = ErrorBody),
))]
pub async fn ping(State(app): State<Arc<App>>) -> Result<StatusCode, Failure> {
    app.ready().map(|()| StatusCode::OK)
}

/// Answers texts by the model's task.
///
/// Also takes `text/plain` (one text), `text/csv` (a text or a pair a row) and `application/jsonlines` (a request a line),
/// and answers in JSON, CSV or JSON lines by `accept`. A bad input in a list gets an error of its own.
#[utoipa::path(post, path = "/invocations", tag = "SageMaker",
    params(
        ("X-Amzn-SageMaker-Target-Model" = Option<String>, Header, description = "Name of a model; the first one where absent"),
        ("X-Amzn-SageMaker-Custom-Attributes" = Option<String>, Header, description = "Given back as it came"),
    ),
    request_body = InvocationRequest,
    responses((status = 200, description = "The answers", body = InvocationResponse), super::Failures))]
pub async fn invocations(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, Failure> {
    let name = match request.headers().get(TARGET_MODEL) {
        Some(name) => {
            Some(name.to_str().map_err(|_| Failure::invalid(TARGET_MODEL.as_str(), "is not text"))?.to_owned())
        }
        None => None,
    };
    invoke(&app, &arrival, name.as_deref(), request, LabelForm::Pipeline).await
}

/// As `/invocations`, for a model by name.
#[utoipa::path(post, path = "/models/{name}/invoke", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    request_body = InvocationRequest,
    responses((status = 200, description = "The answers", body = InvocationResponse), super::Failures))]
pub async fn invoke_model(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    Segment(name): Segment<String>,
    request: Request,
) -> Result<Response, Failure> {
    invoke(&app, &arrival, Some(&name), request, LabelForm::Pipeline).await
}

/// The answer to a request in any content type.
pub async fn invoke(
    app: &App,
    arrival: &Arrival,
    name: Option<&str>,
    request: Request,
    form: LabelForm,
) -> Result<Response, Failure> {
    app.ready()?;
    let served = app.registry.get(name)?;
    let (head, body) = request.into_parts();
    let bytes = body::read(&head.headers, body, app.options.limits.body_bytes, arrival.deadline).await?;
    let response = match served.handler() {
        Some(handler) if handler.functions().predicts() => custom(app, arrival, handler, &head.headers, bytes).await?,
        Some(handler) => around_the_engine(app, arrival, &served, handler, &head.headers, bytes, form).await?,
        None => {
            let content = Content::of_request(&head.headers)?;
            let accept = Content::of_answer(&head.headers, app.options.default_accept.as_deref())?;
            let mut responses = Vec::new();
            for decoded in formats::decode(content, &bytes)? {
                responses.push(match decoded {
                    Ok(decoded) => answer(app, arrival, &served, decoded, form).await,
                    Err(failure) => Err(failure),
                });
            }
            formats::encode(accept, responses)?
        }
    };
    Ok(with_contract_headers(&head.headers, response))
}

async fn answer(
    app: &App,
    arrival: &Arrival,
    served: &Served,
    decoded: Decoded,
    form: LabelForm,
) -> Result<InvocationResponse, Failure> {
    let Decoded { inputs, parameters } = decoded;
    let options = parameters.input_options()?;
    let listed = inputs.listed;
    let text = |input: &Result<crate::input::Input, Failure>| {
        input.as_ref().map_or_else(|_| String::new(), |input| input.text.clone())
    };
    let texts: Vec<String> = inputs.each.iter().map(text).collect();
    let answers = app.answer(arrival, served, inputs, &options).await?;
    response_of(served.engine()?, &parameters, &texts, answers, listed, form)
}

async fn custom(
    app: &App,
    arrival: &Arrival,
    handler: &python::Handler,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let response = handler.invoke(handler_request(app, arrival, headers, body)).await.map_err(handler_failure)?;
    handler_response(response)
}

/// `input_fn` and `output_fn` of the model's own, with the engine between them.
async fn around_the_engine(
    app: &App,
    arrival: &Arrival,
    served: &Served,
    handler: &python::Handler,
    headers: &HeaderMap,
    body: Bytes,
    form: LabelForm,
) -> Result<Response, Failure> {
    let request = handler_request(app, arrival, headers, body);
    let accept = request.accept.clone();
    let value = handler.input(request).await.map_err(handler_failure)?;
    let request: InvocationRequest = serde_json::from_value(value).map_err(|error| {
        let text =
            format!("input_fn must return {{\"inputs\": ..., \"parameters\": ...}} for the built-in model: {error}");
        Failure::new(Kind::HandlerFailed, text)
    })?;
    let response = answer(app, arrival, served, formats::request(request)?, form).await?;
    let value = serde_json::to_value(response).map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    handler_response(
        handler.output(&value, accept, handler_headers(headers), arrival.deadline).await.map_err(handler_failure)?,
    )
}

fn handler_request(app: &App, arrival: &Arrival, headers: &HeaderMap, body: Bytes) -> python::Request {
    let header = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(String::from);
    let default = || app.options.default_accept.clone().unwrap_or_else(|| "application/json".into());
    python::Request {
        content_type: header(header::CONTENT_TYPE).unwrap_or_else(|| "application/json".into()),
        accept: header(header::ACCEPT).filter(|accept| accept != "*/*").unwrap_or_else(default),
        body,
        headers: handler_headers(headers),
        deadline: arrival.deadline,
    }
}

fn handler_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let pair = |(name, value): (&HeaderName, &HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_string()));
    headers.iter().filter_map(pair).collect()
}

fn handler_response(response: python::Response) -> Result<Response, Failure> {
    let status = StatusCode::from_u16(response.status).unwrap_or(StatusCode::OK);
    let content_type = HeaderValue::from_str(&response.content_type).map_err(|_| {
        Failure::new(Kind::HandlerFailed, format!("the handler's content type {:?} is none", response.content_type))
    })?;
    Ok((status, [(header::CONTENT_TYPE, content_type)], response.body).into_response())
}

fn handler_failure(error: python::HandlerError) -> Failure {
    let kind = match error.status() {
        503 => Kind::Unavailable,
        504 => Kind::Deadline,
        429 => Kind::Overloaded,
        413 => Kind::TooLarge,
        415 => Kind::MediaType,
        400..=499 => Kind::HandlerRefused,
        _ => Kind::HandlerFailed,
    };
    Failure::new(kind, error.to_string())
}

fn with_contract_headers(request: &HeaderMap, mut response: Response) -> Response {
    let variant = request.get(TARGET_VARIANT).cloned().unwrap_or(HeaderValue::from_static("AllTraffic"));
    response.headers_mut().insert(INVOKED_VARIANT, variant);
    if let Some(attributes) = request.get(CUSTOM_ATTRIBUTES) {
        response.headers_mut().insert(CUSTOM_ATTRIBUTES, attributes.clone());
    }
    response
}

/// A model to load.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LoadRequest {
    /// What requests will call it.
    #[schema(min_length = 1, max_length = 256)]
    model_name: String,
    /// A path below the server's model root.
    url: String,
}

/// A loaded model.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadedModel {
    /// What requests call it.
    model_name: String,
    /// Where it came from.
    model_url: String,
}

impl From<&Served> for LoadedModel {
    fn from(served: &Served) -> Self {
        Self { model_name: served.name.clone(), model_url: served.source.clone() }
    }
}

/// The loaded models.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoadedModels {
    /// In the order of their arrival.
    models: Vec<LoadedModel>,
}

/// Loads a model.
///
/// Only where the server was started with `--multi-model`, and only from below its `--model-root`.
#[utoipa::path(post, path = "/models", tag = "SageMaker", request_body = LoadRequest,
    responses(
        (status = 200, description = "Loaded and warm", body = LoadedModel),
        (status = 409, description = "A model of that name is loaded", body = ErrorBody),
        (status = 507, description = "There is no memory for it", body = ErrorBody),
        super::Failures))]
pub async fn load_model(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, Failure> {
    let multi = multi_model(&app)?;
    let (head, body) = request.into_parts();
    let bytes = body::read(&head.headers, body, app.options.limits.body_bytes, arrival.deadline).await?;
    let LoadRequest { model_name, url } = body::json(&bytes)?;
    let spec = ModelSpec { source: below(&multi.root, &url)?, name: checked_name(model_name)? };
    let reservation = app.registry.reserve(&spec.name)?;
    refuse_without_memory(&app, multi, &spec).await?;
    let served = Served::load(&spec, &app.options, &app.metrics).await.map_err(unloadable)?;
    let response = body::respond(&LoadedModel::from(&served));
    reservation.fill(Arc::new(served));
    Ok(response)
}

/// Lists the loaded models.
#[utoipa::path(get, path = "/models", tag = "SageMaker",
    responses((status = 200, description = "The models", body = LoadedModels), super::Failures))]
pub async fn list_models(State(app): State<Arc<App>>) -> Response {
    body::respond(&LoadedModels { models: app.registry.all().iter().map(|served| served.as_ref().into()).collect() })
}

/// Describes a loaded model.
#[utoipa::path(get, path = "/models/{name}", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "The model", body = LoadedModel), super::Failures))]
pub async fn show_model(State(app): State<Arc<App>>, Segment(name): Segment<String>) -> Result<Response, Failure> {
    Ok(body::respond(&LoadedModel::from(app.registry.get(Some(&name))?.as_ref())))
}

/// Unloads a model; requests that it is answering are finished.
#[utoipa::path(delete, path = "/models/{name}", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "Unloaded", body = LoadedModel), super::Failures))]
pub async fn unload_model(State(app): State<Arc<App>>, Segment(name): Segment<String>) -> Result<Response, Failure> {
    multi_model(&app)?;
    let served = app.registry.remove(&name)?;
    tracing::info!(model = name, "model unloaded");
    Ok(body::respond(&LoadedModel::from(served.as_ref())))
}

/// Loads a model anew from where it came from; requests go to the old one until the new one is warm.
#[utoipa::path(post, path = "/models/{name}/reload", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "Reloaded", body = LoadedModel), super::Failures))]
pub async fn reload_model(State(app): State<Arc<App>>, Segment(name): Segment<String>) -> Result<Response, Failure> {
    app.ready()?;
    if !app.options.is_loopback() && app.options.api_keys.is_empty() {
        let text = "reloading over HTTP needs an API key (--api-key-file) where the server is open to other machines";
        return Err(Failure::new(Kind::Forbidden, text));
    }
    let served = reload(&app, &name).await?;
    Ok(body::respond(&LoadedModel::from(served.as_ref())))
}

/// See [`reload_model`].
///
/// # Errors
/// When there is no such model, or it does not load; then the old one stays.
pub async fn reload(app: &App, name: &str) -> Result<Arc<Served>, Failure> {
    let old = app.registry.get(Some(name))?;
    let spec = ModelSpec { name: old.name.clone(), source: old.source.clone() };
    let served = Arc::new(Served::load(&spec, &app.options, &app.metrics).await.map_err(unloadable)?);
    app.registry.replace(served.clone())?;
    tracing::info!(model = name, "model reloaded");
    Ok(served)
}

fn unloadable(error: crate::served::ServeError) -> Failure {
    Failure::new(Kind::Unloadable, error.to_string())
}

fn multi_model(app: &App) -> Result<&MultiModel, Failure> {
    app.ready()?;
    app.options.multi_model.as_ref().ok_or_else(|| {
        let text = "models are loaded and unloaded over HTTP only where the server was started with --multi-model";
        Failure::new(Kind::Forbidden, text)
    })
}

fn checked_name(name: String) -> Result<String, Failure> {
    let allowed = |c: char| c.is_alphanumeric() || "._-/".contains(c);
    if name.is_empty() || name.len() > 256 || !name.chars().all(allowed) {
        let problem = "must be 1 to 256 letters, digits, dots, dashes, underscores and slashes";
        return Err(Failure::invalid("model_name", problem));
    }
    Ok(name)
}

/// A path that lies below the root, links followed.
fn below(root: &Path, url: &str) -> Result<String, Failure> {
    let refused = |problem: String| Failure::invalid("url", problem);
    if url.contains("://") {
        return Err(refused("must be a path on this machine; nothing is loaded from a URL".into()));
    }
    let path = if Path::new(url).is_absolute() { PathBuf::from(url) } else { root.join(url) };
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(refused("must not contain `..`".into()));
    }
    let path = path.canonicalize().map_err(|error| refused(format!("cannot be opened: {error}")))?;
    let root = root.canonicalize().map_err(|error| {
        Failure::new(Kind::Internal, format!("the model root {} cannot be opened: {error}", root.display()))
    })?;
    if !path.starts_with(&root) {
        return Err(refused(format!("must lie below the model root {}", root.display())));
    }
    path.into_os_string().into_string().map_err(|_| refused("is not UTF-8".into()))
}

/// What a model takes in memory for each byte of its files.
const MEMORY_PER_FILE_BYTE: f64 = 1.3;

async fn refuse_without_memory(app: &App, multi: &MultiModel, spec: &ModelSpec) -> Result<(), Failure> {
    let sources: Vec<String> = app.registry.all().iter().map(|served| served.source.clone()).collect();
    let (own, limit) = (spec.source.clone(), multi.memory);
    let sizes = tokio::task::spawn_blocking(move || {
        let loaded: u64 = sources.iter().map(|source| size_of_files(Path::new(source))).sum();
        (size_of_files(Path::new(&own)), loaded)
    });
    let (own, loaded) = sizes.await.map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    let (needed, room, whose) = match limit {
        Some(limit) => (own + loaded, limit, "all models may take (--model-memory)"),
        None => (own, available_memory(), "are free on this machine"),
    };
    let needed = (needed as f64 * MEMORY_PER_FILE_BYTE) as u64;
    if needed > room {
        let text = format!("about {needed} bytes are needed and {room} {whose}; unload another model first");
        return Err(Failure::new(Kind::Memory, text));
    }
    Ok(())
}

/// Bytes of all files below a path.
fn size_of_files(path: &Path) -> u64 {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size_of_files(&entry.path())).sum()
}

/// What the system says a new process can have without swapping; everything where it does not say.
fn available_memory() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kibibytes.map_or(u64::MAX, |kibibytes| kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_come_from_below_the_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("m")).unwrap();
        std::fs::create_dir_all(dir.path().join("outside")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), root.join("link")).unwrap();
        assert!(below(&root, "m").unwrap().ends_with("root/m"));
        assert!(below(&root, root.join("m").to_str().unwrap()).is_ok());
        for url in ["../outside", "link", "s3://bucket/m", "gone", dir.path().join("outside").to_str().unwrap()] {
            assert_eq!(below(&root, url).unwrap_err().field.as_deref(), Some("url"), "{url}");
        }
    }

    #[test]
    fn files_are_counted_below_directories() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/x"), [0; 10]).unwrap();
        std::fs::write(dir.path().join("y"), [0; 5]).unwrap();
        assert_eq!(size_of_files(dir.path()), 15);
        assert!(available_memory() > 0);
    }
}
