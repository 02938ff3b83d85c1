//! Loading, readiness, reloading, draining, and models that come and go.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Serving, classifier, encoder, read_reply, write_request, yard};

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
fn models_are_loaded_and_unloaded_over_http_from_below_the_root() {
    let yard = yard();
    classifier(&yard.path("root/c"));
    encoder(&yard.path("root/e"));
    encoder(&yard.path("outside"));
    let root = yard.path("root").display().to_string();
    let args = ["--multi-model", "--model-root", &root, "--host", "127.0.0.1", "--model-memory", "1000000"];
    let serving = Serving::start(yard, &args).ready();
    let load = |name: &str, url: &str| serving.post("/models", json!({"model_name": name, "url": url}));
    assert_eq!(serving.get("/models").ok(), json!({"models": []}));
    assert_eq!(load("first", "c").ok()["modelName"], "first");
    load("first", "e").refused(409, "model_already_loaded", &["first"]);
    load("other", "../outside").refused(422, "invalid_input", &["url"]);
    load("other", "https://example.com/m.tar.gz").refused(422, "invalid_input", &["URL"]);
    load("other", "gone").refused(422, "invalid_input", &["url"]);
    load("second", "e").ok();
    assert_eq!(serving.get("/models").ok()["models"].as_array().unwrap().len(), 2);
    assert!(serving.get("/models/second").ok()["modelUrl"].as_str().unwrap().ends_with("root/e"));
    serving.post("/models/second/invoke", json!({"inputs": "a"})).ok();
    let delete = |name: &str| serving.send("DELETE", &format!("/models/{name}"), &[], b"");
    delete("second").ok();
    delete("second").refused(404, "model_not_found", &["first"]);
    serving.yard.write("root/big/config.json", vec![b' '; 2_000_000]);
    load("big", "big").refused(507, "out_of_memory", &["--model-memory"]);
    assert_eq!(serving.get("/models").ok()["models"].as_array().unwrap().len(), 1, "a failed load leaves no trace");
}

#[test]
fn models_are_not_to_be_loaded_over_http_unless_allowed() {
    let serving = Serving::classifier(&[]);
    let load = serving.post("/models", json!({"model_name": "x", "url": "x"}));
    load.refused(403, "forbidden", &["--multi-model"]);
    serving.send("DELETE", "/models/c", &[], b"").refused(403, "forbidden", &["--multi-model"]);
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
