//! What `/metrics` shows, in Prometheus' text format.

use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::engine::Timing;
use crate::failure::Kind;
use crate::scheduler::{BatchReport, Observer};

/// One answered route.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: String,
    method: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

type Seconds = fn() -> Histogram;

/// All metrics of a server.
pub struct Metrics {
    registry: Registry,
    requests: Family<RouteLabels, Counter>,
    request_seconds: Family<ModelLabels, Histogram, Seconds>,
    errors: Family<KindLabels, Counter>,
    inputs: Family<ModelLabels, Counter>,
    /// Requests that are being answered.
    pub in_flight: Gauge,
    /// Open connections.
    pub connections: Gauge,
    tokenize_seconds: Family<ModelLabels, Histogram, Seconds>,
    queue_seconds: Family<ModelLabels, Histogram, Seconds>,
    infer_seconds: Family<ModelLabels, Histogram, Seconds>,
    batch_tokens: Family<ModelLabels, Histogram, Seconds>,
    batch_size: Family<ModelLabels, Histogram, Seconds>,
    queued: Family<ModelLabels, Gauge>,
    cancelled: Family<ModelLabels, Counter>,
    worker_restarts: Family<ModelLabels, Counter>,
}

/// 0.1 ms to 26 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.0, 19))
}

/// 1 to 65,536.
fn counts() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("trainyard");
        let timed = || Family::<ModelLabels, Histogram, Seconds>::new_with_constructor(seconds);
        let counted = || Family::<ModelLabels, Histogram, Seconds>::new_with_constructor(counts);
        let metrics = Self {
            requests: Family::default(),
            request_seconds: timed(),
            errors: Family::default(),
            inputs: Family::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            tokenize_seconds: timed(),
            queue_seconds: timed(),
            infer_seconds: timed(),
            batch_tokens: counted(),
            batch_size: counted(),
            queued: Family::default(),
            cancelled: Family::default(),
            worker_restarts: Family::default(),
            registry: Registry::default(),
        };
        let r = &mut registry;
        r.register("requests", "Requests by route and status", metrics.requests.clone());
        r.register("errors", "Failures by kind, of requests and of single inputs", metrics.errors.clone());
        r.register("inputs", "Inputs answered", metrics.inputs.clone());
        r.register("in_flight_requests", "Requests being answered", metrics.in_flight.clone());
        r.register("connections", "Open connections", metrics.connections.clone());
        r.register("queued_inputs", "Inputs that wait for a batch", metrics.queued.clone());
        r.register("cancelled_inputs", "Inputs dropped because their client had gone", metrics.cancelled.clone());
        r.register("worker_restarts", "Restarts of Python workers", metrics.worker_restarts.clone());
        r.register("batch_tokens", "Tokens of a batch", metrics.batch_tokens.clone());
        r.register("batch_inputs", "Inputs of a batch", metrics.batch_size.clone());
        let timed = [
            ("request", "Time from a request's arrival to its answer", &metrics.request_seconds),
            ("tokenize", "Time to tokenize a request", &metrics.tokenize_seconds),
            ("queue", "Time an input waited for its batch", &metrics.queue_seconds),
            ("infer", "Time a batch took", &metrics.infer_seconds),
        ];
        for (name, help, family) in timed {
            r.register_with_unit(name, help, Unit::Seconds, family.clone());
        }
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// A request was answered.
    pub fn request(&self, route: &str, method: &str, status: u16) {
        self.requests.get_or_create(&RouteLabels { route: route.into(), method: method.into(), status }).inc();
    }

    /// A request to a model took so long, with so many inputs.
    pub fn answered(&self, model: &str, seconds: f64, inputs: usize) {
        let labels = ModelLabels { model: model.into() };
        self.request_seconds.get_or_create(&labels).observe(seconds);
        self.inputs.get_or_create(&labels).inc_by(inputs as u64);
    }

    /// The time a request's tokenizing took.
    pub fn tokenized(&self, model: &str, timing: &Timing) {
        let seconds = (timing.queued - timing.began).as_secs_f64();
        self.tokenize_seconds.get_or_create(&ModelLabels { model: model.into() }).observe(seconds);
    }

    /// Something failed.
    pub fn failed(&self, kind: Kind) {
        self.errors.get_or_create(&KindLabels { kind: kind.code() }).inc();
    }

    /// Restarts of a model's workers so far.
    pub fn restarts(&self, model: &str, restarts: u64) {
        let counter = self.worker_restarts.get_or_create(&ModelLabels { model: model.into() });
        counter.inc_by(restarts.saturating_sub(counter.get()));
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// Never, as long as memory lasts.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// What a model's scheduler reports to.
    pub fn observer(self: &Arc<Self>, model: &str) -> Arc<dyn Observer> {
        let labels = ModelLabels { model: model.into() };
        Arc::new(ModelObserver {
            queue_seconds: self.queue_seconds.get_or_create(&labels).clone(),
            infer_seconds: self.infer_seconds.get_or_create(&labels).clone(),
            batch_tokens: self.batch_tokens.get_or_create(&labels).clone(),
            batch_size: self.batch_size.get_or_create(&labels).clone(),
            queued: self.queued.get_or_create(&labels).clone(),
            cancelled: self.cancelled.get_or_create(&labels).clone(),
        })
    }
}

struct ModelObserver {
    queue_seconds: Histogram,
    infer_seconds: Histogram,
    batch_tokens: Histogram,
    batch_size: Histogram,
    queued: Gauge,
    cancelled: Counter,
}

impl Observer for ModelObserver {
    fn batch(&self, report: &BatchReport) {
        report.waited_seconds.iter().for_each(|&seconds| self.queue_seconds.observe(seconds));
        self.infer_seconds.observe(report.seconds);
        self.batch_tokens.observe(report.cost as f64);
        self.batch_size.observe(report.size as f64);
    }

    fn queue(&self, length: usize) {
        self.queued.set(length as i64);
    }

    fn cancelled(&self, count: usize) {
        self.cancelled.inc_by(count as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_names_units_and_labels() {
        let metrics = Arc::new(Metrics::default());
        metrics.request("/embed", "POST", 200);
        metrics.failed(Kind::Overloaded);
        metrics.observer("m").batch(&BatchReport { size: 2, cost: 30, seconds: 0.01, waited_seconds: vec![0.001; 2] });
        let text = metrics.text().unwrap();
        for line in [
            "trainyard_requests_total{route=\"/embed\",method=\"POST\",status=\"200\"} 1",
            "trainyard_errors_total{kind=\"overloaded\"} 1",
            "trainyard_queue_seconds_count{model=\"m\"} 2",
            "trainyard_infer_seconds_sum{model=\"m\"} 0.01",
            "trainyard_batch_tokens_sum{model=\"m\"} 30.0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
