//! HTTP: one router for all protocols, and what every request goes through.

pub mod app;
mod auth;
mod body;
mod content;
mod document;
mod formats;
mod hostile;
mod invocations;
mod kserve;
mod models;
mod observe;
mod openai;
mod parameters;
mod path;
mod sagemaker;
mod tei;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use utoipa::{IntoResponses, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::failure::{ErrorBody, Failure, Kind};
use app::App;
pub use auth::{ApiKeys, KeyFileError};
pub use content::answer_type;
pub use hostile::read_everywhere;
pub use models::reload;

/// The failures that any route may answer with, for the OpenAPI document.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "it only describes responses")]
pub(crate) enum Failures {
    /// The body cannot be read; the message has line, column or byte.
    #[response(status = 400)]
    Malformed(ErrorBody),
    /// No or no known API key.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// Not allowed on this server.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// No such model or route.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// None of the accepted content types can be produced.
    #[response(status = 406)]
    NotAcceptable(ErrorBody),
    /// The body did not arrive in time.
    #[response(status = 408)]
    SlowBody(ErrorBody),
    /// The body is over the limit.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The content type cannot be read.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// A field is wrong; the message names it.
    #[response(status = 422)]
    Invalid(ErrorBody),
    /// The queue is full; `Retry-After` says when to try again.
    #[response(status = 429)]
    Overloaded(ErrorBody),
    /// A fault of the server, the model or its handler, never the client's.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// Loading, or shutting down.
    #[response(status = 503)]
    Unavailable(ErrorBody),
    /// The answer was not ready in time.
    #[response(status = 504)]
    Deadline(ErrorBody),
}

/// The same in OpenAI's form.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "it only describes responses")]
pub(crate) enum OpenAiFailures {
    /// The body cannot be read; the message has line, column or byte.
    #[response(status = 400)]
    Malformed(openai::OpenAiError),
    /// No or no known API key.
    #[response(status = 401)]
    Unauthorized(openai::OpenAiError),
    /// No such model.
    #[response(status = 404)]
    NotFound(openai::OpenAiError),
    /// The body did not arrive in time.
    #[response(status = 408)]
    SlowBody(openai::OpenAiError),
    /// The body is over the limit.
    #[response(status = 413)]
    TooLarge(openai::OpenAiError),
    /// The content type cannot be read.
    #[response(status = 415)]
    MediaType(openai::OpenAiError),
    /// A field is wrong; the message names it.
    #[response(status = 422)]
    Invalid(openai::OpenAiError),
    /// The queue is full.
    #[response(status = 429)]
    Overloaded(openai::OpenAiError),
    /// A fault of the server or the model, never the client's.
    #[response(status = 500)]
    Internal(openai::OpenAiError),
    /// Loading, or shutting down.
    #[response(status = 503)]
    Unavailable(openai::OpenAiError),
    /// The answer was not ready in time.
    #[response(status = 504)]
    Deadline(openai::OpenAiError),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        failed(&self, body::respond(&self.body()))
    }
}

/// Gives a response that tells of a failure its status and headers.
fn failed(failure: &Failure, mut response: Response) -> Response {
    *response.status_mut() = StatusCode::from_u16(failure.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(seconds) = failure.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if failure.kind == Kind::Unauthorized {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // For the log and the counter.
    response.extensions_mut().insert(failure.clone());
    response
}

/// All routes of a server.
pub fn router(app: Arc<App>) -> Router {
    let (router, document) = routes().split_for_parts();
    let document = document::finished(document, !app.options.api_keys.is_empty());
    let json = |text: String| ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    router
        .route("/openapi.json", axum::routing::get(move || std::future::ready(json(document.clone()))))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe::observe))
        .with_state(app)
}

fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(document::Document::openapi())
        .routes(routes!(sagemaker::ping))
        .routes(routes!(sagemaker::invocations))
        .routes(routes!(models::list_models, models::load_model))
        .routes(routes!(models::show_model, models::unload_model))
        .routes(routes!(sagemaker::invoke_model))
        .routes(routes!(models::reload_model))
        .routes(routes!(tei::health))
        .routes(routes!(tei::info))
        .routes(routes!(tei::embed))
        .routes(routes!(tei::predict))
        .routes(routes!(tei::root))
        .routes(routes!(openai::embeddings))
        .routes(routes!(openai::models))
        .routes(routes!(openai::model))
        .routes(routes!(kserve::server))
        .routes(routes!(kserve::live))
        .routes(routes!(kserve::ready))
        .routes(routes!(kserve::model))
        .routes(routes!(kserve::model_version))
        .routes(routes!(kserve::model_ready))
        .routes(routes!(kserve::version_ready))
        .routes(routes!(kserve::infer))
        .routes(routes!(kserve::infer_version))
        .routes(routes!(metrics))
}

/// What happened so far, as Prometheus reads it.
#[utoipa::path(get, path = "/metrics", tag = "Operation", responses(
    (status = 200, description = "Metrics", body = String, content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    (status = 401, description = "No or no known API key", body = ErrorBody),
))]
async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, Failure> {
    for served in app.registry.all() {
        if let Some(handler) = served.handler() {
            app.metrics.restarts(&served.name, handler.status().restarts);
        }
    }
    let text = app.metrics.text().map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    // The text is of both formats.
    let asks_for =
        |format| headers.get_all(header::ACCEPT).iter().any(|v| v.to_str().is_ok_and(|v| v.contains(format)));
    let content_type = if asks_for("text/plain") && !asks_for("openmetrics") {
        "text/plain; version=0.0.4; charset=utf-8"
    } else {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    };
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

async fn no_route(uri: axum::http::Uri) -> Response {
    let text = format!("there is no route {}; /openapi.json lists those there are", uri.path());
    openai::failure_at(uri.path(), Failure::new(Kind::NoRoute, text))
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> Response {
    let text = format!("{} does not take {method}; /openapi.json lists what it takes", uri.path());
    openai::failure_at(uri.path(), Failure::new(Kind::Method, text))
}
