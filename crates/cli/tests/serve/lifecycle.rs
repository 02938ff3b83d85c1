//! Loading, readiness, reloading, draining.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Serving, classifier, read_reply, write_request, yard};

const SLOW: &str = "
import time
def model_fn(model_dir):
    time.sleep(30)
def predict_fn(data, model):
    return data
";

#[test]
fn sigterm_turns_readiness_off_finishes_what_is_in_flight_and_exits_with_0() {
    let mut serving = Serving::classifier(&[]);
    // A request whose body is still on its way, and a connection that idles.
    let body = json!({"inputs": "good"}).to_string();
    let mut slow = serving.connect();
    slow.write_all(format!("POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes())
        .unwrap();
    let mut idle = serving.connect();
    idle.write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    serving.signal("TERM");
    serving.await_log("finishing the requests");
    serving.get("/ping").refused(503, "unavailable", &["shutting down"]);
    serving.post("/predict", json!({"inputs": "new"})).refused(503, "unavailable", &["shutting down"]);
    slow.write_all(body.as_bytes()).unwrap();
    let reply = read_reply(&mut slow);
    assert!(reply.status == 200, "{}", reply.text());
    let start = Instant::now();
    assert_eq!(serving.wait().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(5), "nothing was left to wait for");
}

#[test]
fn a_drain_ends_when_its_time_is_over() {
    let mut serving = Serving::classifier(&["--drain-timeout", "0.5"]);
    let mut stuck = serving.connect();
    stuck.write_all(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    serving.signal("TERM");
    assert_eq!(serving.wait().code(), Some(0));
    assert!(serving.log().contains("still in flight"), "{}", serving.log());
}

#[test]
fn a_reload_changes_the_model_without_losing_a_request() {
    let yard = yard();
    classifier(&yard.path("c"));
    let serving = Serving::start(yard, &["c"]).ready();
    let ask = || serving.post("/predict", json!({"inputs": "good"}));
    let before = ask().ok();
    let mut tensors = serving.yard.tensors("c");
    tensors.iter_mut().filter(|(name, ..)| name == "classifier.bias").for_each(|(_, _, values)| values[0] += 5.0);
    serving.yard.write_tensors("c", &tensors);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| (0..100).all(|_| ask().status == 200));
        serving.post("/models/c/reload", json!({})).ok();
        serving.signal("HUP");
        assert!(asking.join().unwrap());
    });
    let after = ask().ok();
    assert_ne!(before, after);
    assert_eq!(after[0]["label"], "down");
    // What does not load leaves what is there.
    serving.yard.write("c/config.json", "{");
    serving.post("/models/c/reload", json!({})).refused(422, "model_unloadable", &["config.json"]);
    assert_eq!(ask().ok(), after);
}

#[test]
fn a_model_that_still_loads_is_not_waited_for() {
    let yard = yard();
    yard.write("m/code/inference.py", SLOW);
    let environments = yard.path("environments").display().to_string();
    let mut serving = Serving::start(yard, &["m", "--environments", &environments]);
    serving.get("/ping").refused(503, "unavailable", &["loading"]);
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    serving.signal("TERM");
    assert_eq!(serving.wait().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_second_signal_ends_at_once_what_is_in_flight() {
    let mut serving = Serving::classifier(&[]);
    let mut stuck = serving.connect();
    stuck.write_all(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    serving.signal("TERM");
    serving.await_log("finishing the requests");
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    serving.signal("TERM");
    assert_eq!(serving.wait().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(serving.log().contains("told to stop again"), "{}", serving.log());
}

#[test]
fn a_model_that_does_not_load_ends_the_server_which_nobody_told_to_stop() {
    let yard = yard();
    classifier(&yard.path("c"));
    yard.write("c/config.json", "{");
    let mut serving = Serving::start(yard, &["c"]);
    assert_eq!(serving.wait().code(), Some(2));
    serving.await_log("config.json");
    assert!(!serving.log().contains("told to stop"), "{}", serving.log());
}

#[test]
fn traces_go_to_a_collector_under_the_callers() {
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let received = std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        while !bytes.windows(5).any(|w| w == b"infer") {
            match stream.read(&mut buffer) {
                Ok(length) if length > 0 => bytes.extend(&buffer[..length]),
                _ => break,
            }
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        bytes
    });
    let mut serving = Serving::classifier(&["--otlp-endpoint", &endpoint]);
    let parent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01";
    let mut stream = serving.connect();
    write_request(&mut stream, "POST", "/predict", &[("traceparent", parent)], b"{\"inputs\":\"good\"}");
    assert_eq!(read_reply(&mut stream).status, 200);
    serving.signal("TERM");
    assert_eq!(serving.wait().code(), Some(0));
    let bytes = received.join().unwrap();
    assert!(bytes.starts_with(b"POST /v1/traces "), "{}", String::from_utf8_lossy(&bytes));
    let trace = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
    assert!(bytes.windows(16).any(|w| w == trace), "the caller's trace goes on");
    for name in ["tokenize", "queue", "infer", "POST /predict"] {
        assert!(bytes.windows(name.len()).any(|w| w == name.as_bytes()), "{name}");
    }
    assert!(serving.log().contains("0123456789abcdef0123456789abcdef"), "the log names the trace");
}
