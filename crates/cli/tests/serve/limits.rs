//! What keeps a server alive: queue, deadlines, slow clients, keys, encryption.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Serving, classifier, write_request, yard};

/// A request that keeps a debug build busy for a while.
fn heavy() -> serde_json::Value {
    json!({"inputs": vec!["the train was in a station and we saw people on it"; 200]})
}

#[test]
fn a_full_queue_answers_429_with_a_time_to_retry() {
    let serving = Serving::classifier(&["--max-queue", "200", "--max-batch-tokens", "64"]);
    let start = Instant::now();
    let refused = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while refused.lock().unwrap().is_none() && start.elapsed() < Duration::from_secs(30) {
                    let reply = serving.post("/invocations", heavy());
                    match reply.status {
                        200 => (),
                        _ => *refused.lock().unwrap() = Some(reply),
                    }
                }
            });
        }
    });
    let refused = refused.into_inner().unwrap().expect("never full");
    refused.refused(429, "overloaded", &["--max-queue"]);
    assert_eq!(refused.header("retry-after"), Some("1"));
    serving.post("/invocations", json!({"inputs": "good"})).ok();
}

#[test]
fn more_inputs_than_a_request_may_have_are_refused() {
    let serving = Serving::classifier(&["--max-inputs", "2"]);
    let reply = serving.post("/invocations", json!({"inputs": ["a", "b", "c"]}));
    reply.refused(422, "too_many_inputs", &["3 inputs", "--max-inputs"]);
}

#[test]
fn an_answer_after_the_deadline_is_a_504() {
    let serving = Serving::classifier(&["--timeout", "0.000001"]);
    serving.post("/invocations", json!({"inputs": "good"})).refused(504, "deadline_exceeded", &["--timeout"]);
}

#[test]
fn slow_clients_are_let_go() {
    let serving = Serving::classifier(&["--header-timeout", "0.3", "--timeout", "0.4"]);
    let mut silent = serving.connect();
    silent.write_all(b"POST /predict HTTP/1.1\r\nhost: x").unwrap();
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains(" 200 "), "an unfinished head is no request");
    let mut slow = serving.connect();
    slow.write_all(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").unwrap();
    let mut reply = [0; 4096];
    let length = slow.read(&mut reply).unwrap();
    let reply = String::from_utf8_lossy(&reply[..length]);
    assert!(reply.contains(" 408 ") && reply.contains("request_timeout"), "{reply}");
    let mut idle = serving.connect();
    idle.write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200"), "answered, and closed when nothing more came");
}

#[test]
fn connections_over_the_limit_wait_for_their_turn() {
    let serving = Serving::classifier(&["--max-connections", "1"]);
    let mut first = serving.connect();
    let mut second = serving.connect();
    write_request(&mut second, "GET", "/ping", &[], b"");
    second.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut byte = [0];
    assert!(second.read(&mut byte).is_err(), "not accepted yet");
    write_request(&mut first, "GET", "/ping", &[], b"");
    assert_eq!(crate::rig::read_reply(&mut first).status, 200);
    second.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(crate::rig::read_reply(&mut second).status, 200);
}

#[test]
fn keys_are_needed_everywhere_but_for_probes() {
    let yard = yard();
    classifier(&yard.path("c"));
    yard.write("keys", "# ours\na-long-key\n");
    let serving = Serving::start(yard, &["c", "--api-key-file", "keys"]).ready();
    for path in ["/info", "/metrics", "/openapi.json", "/nowhere"] {
        let reply = serving.get(path);
        reply.refused(401, "unauthorized", &["Bearer"]);
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    let openai = serving.get("/v1/models");
    assert_eq!((openai.status, &openai.json()["error"]["code"]), (401, &serde_json::json!("unauthorized")));
    for path in ["/ping", "/health", "/v2/health/live", "/v2/health/ready"] {
        assert_eq!(serving.get(path).status, 200);
    }
    let with = |key: &str| serving.send("GET", "/info", &[("authorization", key)], b"").status;
    assert_eq!((with("Bearer a-long-key"), with("Bearer a-long-kez")), (200, 401));
}

#[test]
fn encrypted_connections_with_a_certificate_of_its_own() {
    let yard = yard();
    classifier(&yard.path("c"));
    let serving = Serving::start(yard, &["c", "--tls", "self-signed"]);
    serving.await_log("ready");
    serving.await_log("sha256");
    let url = format!("https://{}/predict", serving.address);
    let ran = serving
        .yard
        .shell(&format!("trainyard bench-serve {url} --insecure --concurrency 2 --seconds 1 --data train.tsv --json"));
    assert!(ran.object()["completed"].as_u64().unwrap() > 0);
    // Plain HTTP to the same port gets nothing of use.
    let mut plain = serving.connect();
    write_request(&mut plain, "GET", "/ping", &[], b"");
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn what_cannot_be_served_is_said_before_anything_listens_for_long() {
    let yard = yard();
    classifier(&yard.path("c"));
    yard.write("keys", "short\n");
    yard.write("cert.pem", "nothing");
    yard.run(&["serve", "gone"]).refused(&["gone", "no such file"]);
    yard.run(&["serve", "c", "--port", "0", "--api-key-file", "keys"]).refused(&["keys", "line 1"]);
    yard.run(&["serve", "c", "--port", "0", "--tls", "cert.pem,cert.pem"]).refused(&["cert.pem"]);
    yard.run(&["serve", "c", "c", "--port", "0"]).refused(&["two models are called `c`"]);
    yard.run(&["serve", "c", "--port", "0", "--task", "feature-extraction"])
        .refused(&["text-classification", "HF_TASK"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    yard.run(&["serve", "c", "--port", &port]).failed(&["cannot listen", &port]);
}
