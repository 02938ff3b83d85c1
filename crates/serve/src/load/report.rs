//! What a load test found.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::client::{Answered, Client};
use super::{Pace, Plan};

/// A request counts as late when the generator itself started it this much after its time.
const LATE: Duration = Duration::from_millis(5);
/// From so many late starts, and such a share of all, the generator is said to have fallen behind.
const FALLEN_BEHIND: u64 = 5;
const TOLERATED_LATE_SHARE: f64 = 0.01;
/// Characters of an answer that is shown.
const SHOWN_BODY: usize = 200;
/// Width of the names in the table, wider than any.
const NAMES: usize = 24;

/// Why a request got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No connection: refused, unreachable, or the name is unknown.
    Connect,
    /// The TLS handshake failed; with a self-signed certificate, trust has to be given.
    Tls,
    /// No whole answer within the time allowed.
    Timeout,
    /// The connection ended before the whole answer was there.
    Closed,
    /// What came back is not HTTP.
    Malformed,
    /// The answer is larger than is read.
    TooLarge,
}

impl FailureKind {
    fn words(self) -> &'static str {
        match self {
            Self::Connect => "no connection",
            Self::Tls => "TLS handshake failed",
            Self::Timeout => "timed out",
            Self::Closed => "connection closed",
            Self::Malformed => "answer is not HTTP",
            Self::TooLarge => "answer too large",
        }
    }
}

/// Latencies of the successful requests, in milliseconds, to three significant digits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    /// Smallest.
    pub min: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90 % are at most this.
    pub p90: f64,
    /// 95 % are at most this.
    pub p95: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// 99.9 % are at most this.
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    /// Largest.
    pub max: f64,
}

/// How well the generator kept its own schedule. Latency counts from the schedule, so lateness is part of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Starts {
    /// Requests started more than five milliseconds late.
    pub late: u64,
    /// 99 % were started at most this late, in milliseconds.
    pub delay_p99_ms: f64,
    /// The latest start, in milliseconds.
    pub delay_max_ms: f64,
    /// More than one request in a hundred, and at least five, were late: the figures say as much about this machine as
    /// about the server.
    pub fell_behind: bool,
}

/// An answer whose status is not 2xx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The first 200 characters of the body, control characters as escapes.
    pub body: String,
}

/// What a load test found. All counts leave the warm-up out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Where the requests went.
    pub url: String,
    /// Requests per second asked for; none in a closed loop.
    pub target_rate: Option<f64>,
    /// Callers of a closed loop.
    pub concurrency: Option<usize>,
    /// Texts of one request.
    pub inputs_per_request: usize,
    /// How long requests were started, in seconds.
    pub seconds: f64,
    /// From then to the last answer, in seconds.
    pub elapsed_seconds: f64,
    /// Requests started.
    pub sent: u64,
    /// Requests that were answered, with whatever status.
    pub completed: u64,
    /// Requests that were answered with 2xx.
    pub succeeded: u64,
    /// Requests given up because the test was interrupted.
    pub unfinished: u64,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// The first answer that is not 2xx, if there was one.
    pub first_refusal: Option<Refusal>,
    /// Requests without an answer, by reason.
    pub failures: BTreeMap<FailureKind, u64>,
    /// Requests started per second.
    pub sent_per_second: f64,
    /// Successful requests per second: of the elapsed time in an open loop, of the time of starts in a closed one.
    pub requests_per_second: f64,
    /// Texts of successful requests per second.
    pub inputs_per_second: f64,
    /// Of the successful requests; none without any.
    pub latency_ms: Option<Latency>,
    /// How well the schedule was kept; none in a closed loop.
    pub starts: Option<Starts>,
    /// Connections opened, warm-up included.
    pub connections: u64,
    /// Requests that waited because all connections were taken, warm-up included.
    pub waited_for_connection: u64,
    /// Whether the test was ended early.
    pub interrupted: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<NAMES$}{value}");
        let load = match (self.target_rate, self.concurrency) {
            (Some(rate), _) => format!("{rate} requests/s asked for"),
            (None, callers) => format!("{} callers, each with one request at a time", callers.unwrap_or(0)),
        };
        line("url", self.url.clone())?;
        line("load", format!("{load}, {:.1} s", self.seconds))?;
        let early =
            if self.interrupted { format!(" (interrupted; {} given up)", self.unfinished) } else { String::new() };
        line("sent", format!("{} ({:.1}/s){early}", self.sent, self.sent_per_second))?;
        line("completed", self.completed.to_string())?;
        for (status, count) in &self.statuses {
            line(&format!("  status {status}"), count.to_string())?;
        }
        if let Some(Refusal { status, body }) = &self.first_refusal {
            line("", format!("first with {status}: {body}"))?;
        }
        for (kind, count) in &self.failures {
            line(&format!("  {}", kind.words()), count.to_string())?;
            if *kind == FailureKind::Tls {
                line("", "trust the server's certificate with --cacert FILE, or any with --insecure".into())?;
            }
        }
        let rates = format!("{:.1} requests/s, {:.1} inputs/s", self.requests_per_second, self.inputs_per_second);
        line("throughput", rates)?;
        if let Some(latency) = &self.latency_ms {
            let from = if self.starts.is_some() { "from the scheduled start" } else { "from the start" };
            line("latency", format!("milliseconds, {from}, of the successful requests"))?;
            for (name, value) in [
                ("min", latency.min),
                ("mean", latency.mean),
                ("p50", latency.p50),
                ("p90", latency.p90),
                ("p95", latency.p95),
                ("p99", latency.p99),
                ("p99.9", latency.p99_9),
                ("max", latency.max),
            ] {
                line(&format!("  {name}"), format!("{value:>10.3}"))?;
            }
        }
        line("connections", format!("{} opened", self.connections))?;
        if self.waited_for_connection > 0 {
            line("", format!("{} requests waited for one; raise the limit", self.waited_for_connection))?;
        }
        if let Some(starts) = &self.starts {
            let delays = format!("p99 {:.3} ms, max {:.3} ms late", starts.delay_p99_ms, starts.delay_max_ms);
            line("own schedule", format!("{} started over 5 ms late, {delays}", starts.late))?;
            if starts.fell_behind {
                line("", "the generator fell behind: use a lower rate or another machine".into())?;
            }
        }
        Ok(())
    }
}

/// Counts while requests are under way.
pub struct Tally {
    counted_from: Instant,
    counts: Mutex<Counts>,
}

struct Counts {
    sent: u64,
    finished: u64,
    late: u64,
    statuses: BTreeMap<u16, u64>,
    first_refusal: Option<Refusal>,
    failures: BTreeMap<FailureKind, u64>,
    latencies: Microseconds,
    delays: Microseconds,
    last: Instant,
}

impl Tally {
    /// Requests that are due before `counted_from` are not counted.
    pub fn new(counted_from: Instant) -> Self {
        let counts = Counts {
            sent: 0,
            finished: 0,
            late: 0,
            statuses: BTreeMap::new(),
            first_refusal: None,
            failures: BTreeMap::new(),
            latencies: Microseconds::default(),
            delays: Microseconds::default(),
            last: counted_from,
        };
        Self { counted_from, counts: Mutex::new(counts) }
    }

    /// Notes a request that was due and is started now, `delay` later.
    pub fn started(&self, due: Instant, delay: Duration) {
        if due < self.counted_from {
            return;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.sent += 1;
        counts.late += u64::from(delay > LATE);
        counts.delays.record(delay);
    }

    /// Notes what became of a request that was due.
    pub fn finished(&self, due: Instant, outcome: Result<Answered, FailureKind>) {
        if due < self.counted_from {
            return;
        }
        let now = Instant::now();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.finished += 1;
        counts.last = now;
        match outcome {
            Ok(Answered { status, refusal }) => {
                if let (None, Some(body)) = (&counts.first_refusal, refusal) {
                    counts.first_refusal = Some(Refusal { status, body: beginning(&body) });
                }
                *counts.statuses.entry(status).or_default() += 1;
                if is_success(status) {
                    counts.latencies.record(now - due);
                }
            }
            Err(kind) => *counts.failures.entry(kind).or_default() += 1,
        }
    }

    /// The report; no request was started after `end`.
    pub fn report(&self, plan: &Plan, client: &Client, end: Instant, interrupted: bool) -> Report {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = (end.saturating_duration_since(self.counted_from)).as_secs_f64();
        let elapsed_seconds = counts.last.max(end).saturating_duration_since(self.counted_from).as_secs_f64();
        let per_second = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let matching = |wanted: fn(u16) -> bool| {
            counts.statuses.iter().filter(|(status, _)| wanted(**status)).map(|(_, count)| count).sum::<u64>()
        };
        let succeeded = matching(is_success);
        // In a closed loop every answer starts a request, so the starts have the rate of the answers, and the time after
        // the last start, when ever fewer are in flight, says nothing of saturation.
        let (target_rate, concurrency, counted_seconds) = match plan.pace {
            Pace::Open { rate, .. } => (Some(rate), None, elapsed_seconds),
            Pace::Closed { concurrency } => (None, Some(concurrency), seconds),
        };
        let requests_per_second = per_second(succeeded, counted_seconds);
        let starts = Starts {
            late: counts.late,
            delay_p99_ms: counts.delays.quantile(0.99),
            delay_max_ms: counts.delays.quantile(1.0),
            fell_behind: fell_behind(counts.late, counts.sent),
        };
        Report {
            url: plan.target.url(),
            target_rate,
            concurrency,
            inputs_per_request: plan.inputs_per_request,
            seconds,
            elapsed_seconds,
            sent: counts.sent,
            completed: matching(|_| true),
            succeeded,
            unfinished: counts.sent - counts.finished,
            statuses: counts.statuses.clone(),
            first_refusal: counts.first_refusal.clone(),
            failures: counts.failures.clone(),
            sent_per_second: per_second(counts.sent, seconds),
            requests_per_second,
            inputs_per_second: requests_per_second * plan.inputs_per_request as f64,
            latency_ms: counts.latencies.summary(),
            starts: target_rate.map(|_| starts),
            connections: client.opened(),
            waited_for_connection: client.waited(),
            interrupted,
        }
    }
}

/// The beginning of a body in one line.
fn beginning(body: &[u8]) -> String {
    // A character has up to four bytes.
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * SHOWN_BODY)]);
    let mut shown = String::new();
    for c in text.trim().chars().take(SHOWN_BODY) {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

fn fell_behind(late: u64, sent: u64) -> bool {
    late >= FALLEN_BEHIND && late as f64 > TOLERATED_LATE_SHARE * sent as f64
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// A histogram of durations up to twelve days with three significant digits; without any record it has no memory yet.
#[derive(Default)]
struct Microseconds(Option<Histogram<u64>>);

impl Microseconds {
    fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if self.0.is_none() {
            self.0 = Histogram::new_with_bounds(1, 1 << 40, 3).ok();
        }
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(micros);
        }
    }

    /// In milliseconds.
    fn quantile(&self, quantile: f64) -> f64 {
        self.0.as_ref().map_or(0.0, |histogram| histogram.value_at_quantile(quantile) as f64 / 1e3)
    }

    fn summary(&self) -> Option<Latency> {
        let histogram = self.0.as_ref()?;
        Some(Latency {
            min: histogram.min() as f64 / 1e3,
            mean: histogram.mean() / 1e3,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p95: self.quantile(0.95),
            p99: self.quantile(0.99),
            p99_9: self.quantile(0.999),
            max: self.quantile(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leaves_a_gap_before_its_count() {
        use FailureKind::{Closed, Connect, Malformed, Timeout, Tls, TooLarge};
        for kind in [Connect, Tls, Timeout, Closed, Malformed, TooLarge] {
            assert!("  ".len() + kind.words().len() < NAMES, "{kind:?}");
        }
    }

    #[test]
    fn a_few_late_starts_are_not_yet_falling_behind() {
        for (late, sent, behind) in [(4, 10, false), (5, 10, true), (5, 500, false), (5, 499, true), (0, 0, false)] {
            assert_eq!(fell_behind(late, sent), behind, "{late} of {sent}");
        }
    }

    #[test]
    fn a_body_is_shown_in_one_short_line() {
        assert_eq!(beginning(b"{\"error\":\n\x1b1}\n"), "{\"error\":\\n\\u{1b}1}");
        assert_eq!(beginning("é".repeat(1000).as_bytes()), "é".repeat(200));
    }
}
