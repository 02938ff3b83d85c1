//! Traces: W3C `traceparent` in, OTLP over HTTP out.
//!
//! Spans of a request: the request itself, and under it `tokenize`, `queue` and `infer`. They are made after the fact,
//! from times that are taken anyway, and only where a collector is set.

use std::time::{Instant, SystemTime};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

/// How long a collector may take.
const EXPORT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Where traces go, if anywhere.
#[derive(Default)]
pub struct Telemetry(Option<Tracing>);

struct Tracing {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// A request's trace; empty where none is collected.
#[derive(Clone, Default)]
pub struct Trace(Option<Context>);

/// A stretch of a request's time.
pub struct Stage {
    /// Name of its span.
    pub name: &'static str,
    /// Begin.
    pub from: Instant,
    /// End.
    pub to: Instant,
}

/// The collector cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to {endpoint}: {problem}")]
pub struct TelemetryError {
    endpoint: String,
    problem: String,
}

impl Telemetry {
    /// Sends traces to an OTLP collector at a base URL such as `http://127.0.0.1:4318`.
    ///
    /// # Errors
    /// When the URL is none.
    pub fn to(endpoint: &str) -> Result<Self, TelemetryError> {
        let failed = |problem: String| TelemetryError { endpoint: endpoint.into(), problem };
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let client = Client(ureq::AgentBuilder::new().timeout(EXPORT_TIMEOUT).build());
        let exporter =
            opentelemetry_otlp::SpanExporter::builder().with_http().with_endpoint(url).with_http_client(client);
        let exporter = exporter.build().map_err(|error| failed(error.to_string()))?;
        let resource = Resource::builder().with_service_name("trainyard").build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        let tracer = provider.tracer("trainyard");
        Ok(Self(Some(Tracing { provider, tracer })))
    }

    /// Begins a request's trace, under the caller's where it sent one.
    pub fn begin(&self, method: &str, route: &str, headers: &axum::http::HeaderMap) -> Trace {
        let Some(Tracing { tracer, .. }) = &self.0 else { return Trace(None) };
        let parent = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
        let span = tracer.span_builder(format!("{method} {route}")).with_kind(SpanKind::Server);
        Trace(Some(parent.with_span(span.start_with_context(tracer, &parent))))
    }

    /// Records what a request's time went into.
    pub fn stages(&self, trace: &Trace, stages: &[Stage], tokens: usize, inputs: usize) {
        let (Some(Tracing { tracer, .. }), Some(context)) = (&self.0, &trace.0) else { return };
        let (now, clock) = (Instant::now(), SystemTime::now());
        let time = |instant: Instant| clock - now.saturating_duration_since(instant);
        for stage in stages {
            let span = tracer.span_builder(stage.name).with_start_time(time(stage.from));
            span.start_with_context(tracer, context).end_with_timestamp(time(stage.to));
        }
        let span = context.span();
        span.set_attribute(KeyValue::new("trainyard.tokens", tokens as i64));
        span.set_attribute(KeyValue::new("trainyard.inputs", inputs as i64));
    }

    /// Sends what is left.
    pub fn finish(&self) {
        if let Some(Tracing { provider, .. }) = &self.0
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

impl Trace {
    /// Ends the request's span.
    pub fn end(&self, route: &str, status: u16) {
        let Some(context) = &self.0 else { return };
        let span = context.span();
        span.set_attribute(KeyValue::new("http.route", route.to_string()));
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            span.set_status(Status::error("server error"));
        }
        span.end();
    }

    /// The trace's number, for logs.
    pub fn id(&self) -> Option<String> {
        self.0.as_ref().map(|context| context.span().span_context().trace_id().to_string())
    }
}

/// The exporter's transport. It is called on the exporter's own thread, so it may block.
#[derive(Debug)]
struct Client(ureq::Agent);

impl HttpClient for Client {
    fn send_bytes<'a, 'f>(
        &'a self,
        request: Request<Bytes>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.send(request) })
    }
}

impl Client {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut call = self.0.post(&request.uri().to_string());
        for (name, value) in request.headers() {
            if let Ok(value) = value.to_str() {
                call = call.set(name.as_str(), value);
            }
        }
        let answer = match call.send_bytes(request.body()) {
            Ok(answer) | Err(ureq::Error::Status(_, answer)) => answer,
            Err(error) => return Err(Box::new(error)),
        };
        Ok(Response::builder().status(answer.status()).body(Bytes::new())?)
    }
}
