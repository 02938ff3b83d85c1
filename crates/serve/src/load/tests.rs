//! Runs against a small server with known behaviour.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming, server::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::*;

/// What the server does with the request of a number, counted from 0.
type Behaviour = fn(u64) -> (u16, Duration);

const OK: Behaviour = |_| (200, Duration::ZERO);

struct Fixture {
    url: String,
    bodies: Arc<std::sync::Mutex<Vec<String>>>,
    connections: Arc<AtomicU64>,
}

async fn server(behaviour: Behaviour, tls: Option<TlsAcceptor>) -> Fixture {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", listener.local_addr().unwrap());
    let fixture = Fixture { url, bodies: Arc::default(), connections: Arc::default() };
    let (bodies, connections, requests) =
        (fixture.bodies.clone(), fixture.connections.clone(), Arc::new(AtomicU64::new(0)));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.fetch_add(1, Ordering::Relaxed);
            let (bodies, requests, tls) = (bodies.clone(), requests.clone(), tls.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (bodies, requests) = (bodies.clone(), requests.clone());
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    bodies.lock().unwrap().push(String::from_utf8(body.to_vec()).unwrap());
                    let (status, delay) = behaviour(requests.fetch_add(1, Ordering::Relaxed));
                    tokio::time::sleep(delay).await;
                    let mut response = Response::new(Full::new(Bytes::from_static(b"[]")));
                    *response.status_mut() = status.try_into().unwrap();
                    Ok::<_, Infallible>(response)
                }
            });
            tokio::spawn(async move {
                match tls {
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                        }
                    }
                    None => drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await),
                }
            });
        }
    });
    fixture
}

fn plan(url: &str, pace: Pace, seconds: f64) -> Plan {
    Plan {
        target: Target::parse(url, None, "m", Trust::System).unwrap(),
        texts: ["one", "two", "three"].map(String::from).to_vec(),
        pace,
        duration: Duration::from_secs_f64(seconds),
        warmup: Duration::ZERO,
        inputs_per_request: 1,
        timeout: Duration::from_secs(5),
        max_connections: 64,
        seed: 0,
    }
}

fn at(rate: f64) -> Pace {
    Pace::Open { rate, arrival: Arrival::Constant }
}

#[tokio::test]
async fn every_scheduled_request_is_sent_and_counted_and_texts_are_cycled() {
    let server = server(OK, None).await;
    let report = run(plan(&server.url, at(100.0), 0.5)).await.unwrap();
    assert_eq!((report.sent, report.completed, report.succeeded, report.unfinished), (50, 50, 50, 0));
    assert_eq!((report.statuses[&200], report.failures.len()), (50, 0));
    assert!((report.sent_per_second - 100.0).abs() < 1e-6);
    let bodies = server.bodies.lock().unwrap();
    assert_eq!(
        bodies[..4],
        [r#"{"inputs":"one"}"#, r#"{"inputs":"two"}"#, r#"{"inputs":"three"}"#, r#"{"inputs":"one"}"#]
    );
    assert_eq!(report.connections, server.connections.load(Ordering::Relaxed));
}

#[tokio::test]
async fn latency_counts_from_the_schedule_while_the_server_stalls() {
    // One connection, and the first answer takes 400 ms: the nine others wait behind it and must say so.
    let server = server(|number| (200, Duration::from_millis(if number == 0 { 400 } else { 0 })), None).await;
    let report = run(Plan { max_connections: 1, ..plan(&server.url, at(50.0), 0.2) }).await.unwrap();
    let latency = report.latency_ms.unwrap();
    assert_eq!(report.succeeded, 10);
    assert!(latency.min >= 219.0, "the last was due 180 ms after the first: {latency:?}");
    assert!(latency.max >= 399.0, "{latency:?}");
    assert_eq!(report.waited_for_connection, 9);
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn refusals_are_counted_by_status_and_have_no_latency() {
    let server = server(|number| (if number % 4 == 3 { 429 } else { 200 }, Duration::ZERO), None).await;
    let report = run(plan(&server.url, at(200.0), 0.2)).await.unwrap();
    assert_eq!((report.completed, report.statuses[&200], report.statuses[&429]), (40, 30, 10));
    let report =
        run(plan(&format!("{}/embed", self::server(|_| (503, Duration::ZERO), None).await.url), at(50.0), 0.1));
    let report = report.await.unwrap();
    assert_eq!((report.succeeded, report.latency_ms.is_none()), (0, true));
}

#[tokio::test]
async fn a_slow_answer_times_out() {
    let server = server(|_| (200, Duration::from_secs(60)), None).await;
    let begun = Instant::now();
    let report = run(Plan { timeout: Duration::from_millis(100), ..plan(&server.url, at(50.0), 0.1) }).await.unwrap();
    assert_eq!((report.sent, report.failures[&FailureKind::Timeout]), (5, 5));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// Answers every connection with these bytes and closes it.
async fn raw(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(answer).await.unwrap();
        }
    });
    url
}

#[tokio::test]
async fn broken_servers_are_told_apart() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (url, kind) in [
        (raw(b"").await, FailureKind::Closed),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await, FailureKind::Closed),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").await, FailureKind::Malformed),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n").await, FailureKind::TooLarge),
        (format!("http://{unused}"), FailureKind::Connect),
    ] {
        let report = run(plan(&url, at(50.0), 0.06)).await.unwrap();
        assert_eq!((report.sent, report.failures.get(&kind)), (3, Some(&3)), "{kind:?}: {report:?}");
    }
}

#[tokio::test]
async fn a_connection_closed_after_every_answer_loses_no_request() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";
    let report = run(plan(&raw(answer).await, at(100.0), 0.2)).await.unwrap();
    assert_eq!((report.succeeded, report.connections), (20, 20), "{report:?}");
}

#[tokio::test]
async fn a_closed_loop_keeps_so_many_in_flight() {
    let server = server(|_| (200, Duration::from_millis(20)), None).await;
    let report = run(plan(&server.url, Pace::Closed { concurrency: 4 }, 0.3)).await.unwrap();
    assert_eq!((report.connections, report.starts.is_none()), (4, true));
    assert!((8..=60).contains(&report.succeeded), "4 callers × 15 turns at most: {report:?}");
    assert_eq!(report.sent, report.succeeded);
}

#[tokio::test]
async fn warmup_is_sent_and_not_counted() {
    let server = server(OK, None).await;
    let report = run(Plan { warmup: Duration::from_millis(200), ..plan(&server.url, at(50.0), 0.2) }).await.unwrap();
    assert_eq!((report.sent, server.bodies.lock().unwrap().len()), (10, 20));
}

#[tokio::test]
async fn an_interruption_ends_early_with_the_results_so_far() {
    let server = server(|number| (200, Duration::from_secs(if number == 5 { 60 } else { 0 })), None).await;
    let stop = tokio::time::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    let report = run_until(plan(&server.url, at(50.0), 3600.0), stop).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5) && report.interrupted);
    assert!((1..=2).contains(&report.unfinished), "the one that hangs, and one just started: {report:?}");
    assert_eq!(report.succeeded + report.unfinished, report.sent);
}

#[tokio::test]
async fn https_needs_trust_or_the_wish_to_do_without() {
    let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_string()]).unwrap();
    let key = PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    let server = server(OK, Some(TlsAcceptor::from(Arc::new(config)))).await;
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("cert.pem");
    std::fs::write(&pem, signed.cert.pem()).unwrap();
    let other = folder.path().join("other.pem");
    std::fs::write(&other, rcgen::generate_simple_self_signed(["h".to_string()]).unwrap().cert.pem()).unwrap();
    for (trust, succeeded) in [(Trust::Any, 5), (Trust::File(pem), 5), (Trust::File(other), 0)] {
        let target = Target::parse(&server.url, None, "m", trust.clone()).unwrap();
        let report = run(Plan { target, ..plan(&server.url, at(100.0), 0.05) }).await.unwrap();
        assert_eq!(report.succeeded, succeeded, "{trust:?}");
        assert_eq!(report.failures.get(&FailureKind::Tls).copied().unwrap_or(0), 5 - succeeded);
        let table = report.to_string();
        assert_eq!(table.contains("TLS handshake failed  5\n"), succeeded == 0, "{table}");
        assert_eq!(table.contains("--cacert FILE, or any with --insecure"), succeeded == 0, "{table}");
    }
}

#[tokio::test]
async fn a_plan_that_cannot_be_carried_out_is_refused() {
    let fine = plan("http://127.0.0.1:9", at(1.0), 1.0);
    for (wrong, part) in [
        (Plan { pace: at(0.0), ..fine.clone() }, "rate is 0"),
        (Plan { pace: at(f64::NAN), ..fine.clone() }, "rate is NaN"),
        (Plan { pace: at(9e5), ..fine.clone() }, "rate × timeout"),
        (
            Plan { pace: Pace::Closed { concurrency: 65 }, ..fine.clone() },
            "concurrency is 65; it must be between 1 and 64",
        ),
        (Plan { inputs_per_request: 0, ..fine.clone() }, "inputs-per-request is 0"),
        (Plan { texts: Vec::new(), ..fine }, "no texts"),
    ] {
        let message = run(wrong).await.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn a_report_is_a_table_and_a_json_object() {
    let server = server(|number| (if number == 0 { 429 } else { 200 }, Duration::ZERO), None).await;
    let report = run(Plan { inputs_per_request: 2, ..plan(&server.url, at(100.0), 0.1) }).await.unwrap();
    let table = report.to_string();
    for part in [
        "sent                    10 (100.0/s)",
        "  status 429            1\n",
        "first with 429: []\n",
        "  p99.9  ",
        "own schedule",
    ] {
        assert!(table.contains(part), "{part:?} in\n{table}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["first_refusal"], serde_json::json!({"status": 429, "body": "[]"}));
    assert_eq!((&json["statuses"]["429"], &json["failures"]), (&1.into(), &serde_json::json!({})));
    assert!(json["latency_ms"]["p99.9"].is_number());
    assert_eq!(report.inputs_per_second, 2.0 * report.requests_per_second);
}
