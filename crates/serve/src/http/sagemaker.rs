//! The SageMaker container contract: `/ping` and `/invocations`; the multi-model API is in `models`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::app::{App, Arrival, placed};
use super::body;
use super::content::{Content, preferred};
use super::formats::{self, Decoded};
use super::invocations::{InvocationRequest, InvocationResponse, response_of};
use super::parameters::LabelForm;
use super::path::InPath;
use crate::engine::Answer;
use crate::failure::{ErrorBody, Failure, Kind};
use crate::input::InputOptions;
use crate::python;
use crate::served::Served;
use crate::task::some_done;

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
    let name = target_model(request.headers())?;
    invoke(&app, &arrival, name.as_deref(), request, LabelForm::Pipeline).await
}

/// The model that a request's header names.
///
/// # Errors
/// When it is not text.
pub fn target_model(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let text = |name: &HeaderValue| name.to_str().map(String::from);
    let name = headers.get(TARGET_MODEL).map(text).transpose();
    name.map_err(|_| Failure::invalid(TARGET_MODEL.as_str(), "is not text"))
}

/// As `/invocations`, for a model by name.
#[utoipa::path(post, path = "/models/{name}/invoke", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    request_body = InvocationRequest,
    responses((status = 200, description = "The answers", body = InvocationResponse), super::Failures))]
pub async fn invoke_model(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    InPath(name): InPath<String>,
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
        Some(handler) if handler.functions().predicts() => {
            custom(app, arrival, &served.name, handler, &head.headers, bytes).await?
        }
        Some(handler) => around_the_engine(app, arrival, &served, handler, &head.headers, bytes, form).await?,
        None => {
            let content = Content::of_request(&head.headers)?;
            let accept = Content::of_answer(&head.headers, app.options.default_accept.as_deref())?;
            let requests = formats::decode(content, &bytes)?;
            let responses = answer_all(app, arrival, &served, requests, form).await?;
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
    let mut responses = answer_all(app, arrival, served, vec![Ok(decoded)], form).await?;
    responses.pop().unwrap_or_else(|| Err(Failure::new(Kind::Internal, "the request was lost")))
}

/// Answers the requests of a body: those with equal options together, so that lines share batches.
async fn answer_all(
    app: &App,
    arrival: &Arrival,
    served: &Served,
    requests: Vec<Result<Decoded, Failure>>,
    form: LabelForm,
) -> Result<Vec<Result<InvocationResponse, Failure>>, Failure> {
    let engine = served.engine()?;
    let count = requests.iter().map(|request| request.as_ref().map_or(1, |decoded| decoded.inputs.each.len())).sum();
    app.check_count(count, "inputs")?;
    let mut groups: Vec<(InputOptions, Vec<usize>)> = Vec::new();
    let mut open: Vec<Result<Decoded, Failure>> = requests;
    for (index, request) in open.iter_mut().enumerate() {
        let Ok(decoded) = request else { continue };
        match decoded.check_count(app).and_then(|()| decoded.parameters.input_options()) {
            Err(failure) => *request = Err(failure),
            Ok(options) => match groups.iter_mut().find(|(known, _)| *known == options) {
                Some((_, members)) => members.push(index),
                None => groups.push((options, vec![index])),
            },
        }
    }
    let texts: Vec<Vec<String>> =
        open.iter().map(|request| request.as_ref().map_or_else(|_| vec![], Decoded::texts)).collect();
    let mut answers: Vec<Vec<Result<Answer, Failure>>> = open.iter().map(|_| Vec::new()).collect();
    for (options, members) in groups {
        let (mut inputs, mut counts) = (Vec::new(), Vec::new());
        for &index in &members {
            if let Ok(decoded) = &mut open[index] {
                counts.push(decoded.inputs.each.len());
                inputs.append(&mut decoded.inputs.each);
            }
        }
        let mut results = app.run(arrival, served, inputs, &options).await?.into_iter();
        for (&index, count) in members.iter().zip(counts) {
            answers[index] = results.by_ref().take(count).collect();
        }
    }
    let requests = open.iter().filter_map(|request| request.as_ref().err());
    let inputs = answers.iter().flatten().filter_map(|answer| answer.as_ref().err());
    let failures: Vec<Kind> = requests.chain(inputs).map(|failure| failure.kind).collect();
    let response = |((request, answers), texts): ((Result<Decoded, Failure>, _), Vec<String>)| {
        let Decoded { inputs, parameters } = request?;
        let answers = placed(inputs.list, answers);
        response_of(engine, &parameters, &texts, answers, inputs.list.is_some(), form)
    };
    let responses: Vec<_> = open.into_iter().zip(answers).zip(texts).map(response).collect();
    if some_done(&responses).is_ok() {
        app.count_failures(failures);
    }
    Ok(responses)
}

async fn custom(
    app: &App,
    arrival: &Arrival,
    name: &str,
    handler: &python::Handler,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let response = handler.invoke(handler_request(app, arrival, headers, body)).await.map_err(handler_failure)?;
    app.metrics.answered(name, arrival.at.elapsed().as_secs_f64(), 1);
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
        accept: header(header::ACCEPT).and_then(|accept| preferred(&accept)).unwrap_or_else(default),
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
    let mut answer = (status, [(header::CONTENT_TYPE, content_type)], response.body).into_response();
    for (name, value) in response.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            answer.headers_mut().append(name, value);
        }
    }
    Ok(answer)
}

fn handler_failure(error: python::HandlerError) -> Failure {
    let kind = match error.status() {
        503 => Kind::Unavailable,
        504 => Kind::Deadline,
        429 => Kind::Overloaded,
        413 => Kind::TooLarge,
        415 => Kind::MediaType,
        406 => Kind::NotAcceptable,
        400..=499 => Kind::HandlerRefused,
        _ => Kind::HandlerFailed,
    };
    let failure = Failure::new(kind, error.to_string()).with_status(error.status());
    if matches!(kind, Kind::Unavailable | Kind::Overloaded) { failure.retry_after(1) } else { failure }
}

fn with_contract_headers(request: &HeaderMap, mut response: Response) -> Response {
    let variant = request.get(TARGET_VARIANT).cloned().unwrap_or(HeaderValue::from_static("AllTraffic"));
    response.headers_mut().insert(INVOKED_VARIANT, variant);
    if let Some(attributes) = request.get(CUSTOM_ATTRIBUTES) {
        response.headers_mut().insert(CUSTOM_ATTRIBUTES, attributes.clone());
    }
    response
}
