//! What every request goes through: key, deadline, trace, log, counters; and what becomes of a panic.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::task::JoinSet;

use super::app::{App, Arrival};
use super::body::Shared;
use super::openai::failure_at;
use crate::failure::{Failure, Kind};
use crate::scheduler::panic_message;

/// Routes that answer without a key: probes have none.
pub const OPEN_ROUTES: [&str; 4] = ["/ping", "/health", "/v2/health/live", "/v2/health/ready"];

/// Counts a request while it is being answered, however that ends.
struct InFlight(Arc<App>);

impl InFlight {
    fn new(app: &Arc<App>) -> Self {
        app.metrics.in_flight.inc();
        Self(app.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.metrics.in_flight.dec();
    }
}

pub async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let _in_flight = InFlight::new(&app);
    let at = Instant::now();
    let method = known(request.method());
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = path.as_deref().unwrap_or("none");
    let trace = app.telemetry.begin(method, route, request.headers());
    let deadline = at + app.options.limits.timeout;
    request.extensions_mut().insert(Arrival { at, deadline, trace: trace.clone() });
    let (rest, body) = Shared::new(std::mem::take(request.body_mut()));
    *request.body_mut() = body;
    // Who asks before it sends is told, and sends nothing.
    let asks_first = request.headers().contains_key(header::EXPECT);
    let allowed = if OPEN_ROUTES.contains(&route) { Ok(()) } else { app.options.api_keys.check(request.headers()) };
    let response = match allowed {
        Ok(()) => caught(next, request).await,
        Err(failure) => failure_at(request.uri().path(), failure),
    };
    if !response.status().is_success() && !asks_first {
        rest.discard(app.options.limits.body_bytes).await;
    }
    let status = response.status().as_u16();
    app.metrics.request(route, method, status);
    trace.end(route, status);
    log(&app, &response, method, route, at, trace.id());
    response
}

/// A method's name; strangers' inventions share one, or each would be a series of its own.
fn known(method: &Method) -> &'static str {
    let names = ["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "CONNECT", "TRACE"];
    names.into_iter().find(|name| method == name).unwrap_or("other")
}

/// Runs the handler as a task of its own, so that a panic in it is a response, and so that it ends when the client goes.
async fn caught(next: Next, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let failed = |text: String| failure_at(&path, Failure::new(Kind::Internal, text));
    let mut task = JoinSet::new();
    task.spawn(next.run(request));
    match task.join_next().await {
        Some(Ok(response)) => response,
        Some(Err(error)) if error.is_panic() => {
            let text = panic_message(&*error.into_panic());
            failed(format!("the server failed on this request: {text}"))
        }
        _ => failed("the request was interrupted".into()),
    }
}

fn log(app: &App, response: &Response, method: &str, route: &str, at: Instant, trace: Option<String>) {
    let (status, ms) = (response.status().as_u16(), at.elapsed().as_micros() as f64 / 1e3);
    match response.extensions().get::<Failure>() {
        None => tracing::debug!(method, route, status, ms, trace, "answered"),
        Some(failure) => {
            app.metrics.failed(failure.kind);
            let (kind, error, field) = (failure.kind.code(), &failure.message, failure.field.as_deref());
            if OPEN_ROUTES.contains(&route) {
                // Whoever probes asks again and again.
                tracing::debug!(method, route, status, "{error}");
            } else if status >= 500 && failure.kind != Kind::Unavailable {
                tracing::error!(method, route, status, ms, kind, field, trace, "{error}");
            } else {
                tracing::info!(method, route, status, ms, kind, field, trace, "{error}");
            }
        }
    }
}
