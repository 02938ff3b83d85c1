//! Clients that mean harm, or merely behave oddly.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Serving, encoder, read_reply, tagger, write_request, yard};

#[test]
fn names_in_paths_that_are_not_utf8_fail_in_the_form_of_their_protocol() {
    let serving = Serving::encoder(&[]);
    for path in ["/models/%FF", "/v2/models/%FF", "/v2/models/%FF/versions/1/ready"] {
        serving.get(path).refused(400, "invalid_utf8", &["UTF-8"]);
    }
    let reply = serving.get("/v1/models/%FF");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("invalid_utf8")));
}

#[test]
fn what_a_client_sends_forges_no_line_of_the_log_and_comes_back_in_part() {
    let serving = Serving::encoder(&[]);
    let name = format!("x\n2026-01-01T00:00:00Z  INFO ready FORGED{}", "y".repeat(1 << 20));
    let reply = serving.post("/v1/embeddings", json!({"model": name, "input": "a"}));
    assert_eq!(reply.status, 404);
    assert!(reply.body.len() < 4096, "{} bytes", reply.body.len());
    serving.await_log("FORGED");
    assert!(!serving.log().lines().any(|line| line.starts_with("2026-01-01")), "a forged line");
}

#[test]
fn methods_that_strangers_invent_share_one_series() {
    let serving = Serving::encoder(&[]);
    for i in 0..5 {
        serving.send(&format!("M{i}"), "/nowhere", &[], b"").refused(404, "no_route", &[]);
    }
    assert_eq!(serving.metric("trainyard_requests_total{route=\"none\",method=\"other\",status=\"404\"}"), 5.0);
}

#[test]
fn a_client_that_sends_all_before_it_reads_gets_its_error() {
    let serving = Serving::encoder(&[]);
    let large = vec![b'x'; 3 << 20];
    serving.post_raw("/nowhere", "application/json", &large).refused(404, "no_route", &[]);
    serving.post_raw("/predict", "application/json", &large).refused(422, "wrong_task", &[]);
}

#[test]
fn a_client_that_asks_first_is_told_at_once() {
    let serving = Serving::encoder(&[]);
    let mut stream = serving.connect();
    let head = "POST /embed HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 100000000\r\n\r\n";
    let start = Instant::now();
    stream.write_all(head.as_bytes()).unwrap();
    let reply = read_reply(&mut stream);
    reply.refused(413, "payload_too_large", &["100000000 bytes"]);
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_client_that_never_reads_loses_its_slot() {
    let serving = Serving::encoder(&["--max-connections", "1", "--header-timeout", "0.5"]);
    let body = json!({"inputs": vec!["the train"; 200]}).to_string();
    let request = format!("POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut greedy = serving.connect();
    greedy.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    // Until neither side can write any more.
    while greedy.write_all(request.as_bytes()).is_ok() {}
    assert_eq!(serving.get("/ping").status, 200);
}

#[test]
fn bodies_that_are_no_objects_and_fields_that_are_not_known_are_refused() {
    let serving = Serving::classifier(&[]);
    let positional = serving.post("/invocations", json!(["a text", {}, null, null, null]));
    positional.refused(422, "invalid_input", &["a list", "an object"]);
    let beside = serving.post("/invocations", json!({"inputs": "a", "top_k": 2}));
    beside.refused(422, "invalid_input", &["top_k", "parameters"]);
    serving.post("/predict", json!({"inputs": "a", "foo": 1})).refused(422, "invalid_input", &["foo"]);
    let wrong = serving.post("/invocations", json!({"inputs": "a", "parameters": {"top_k": "2"}}));
    wrong.refused(422, "invalid_input", &["parameters.top_k", "whole number"]);
    let tensor = json!({"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]});
    let unread = serving.post("/v2/models/c/infer", json!({"inputs": [tensor], "parameters": {"max_length": 3}}));
    unread.refused(422, "invalid_input", &["parameters.max_length"]);
}

#[test]
fn failures_have_their_status_in_every_content_type() {
    let serving = Serving::classifier(&[]);
    for accept in ["application/json", "text/csv", "application/jsonlines"] {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        serving.send("POST", "/invocations", &headers, b"{\"inputs\": []}").refused(422, "invalid_input", &["empty"]);
    }
    let lines = serving.post_raw("/invocations", "application/jsonlines", b"{\"inputs\": 5}\nnonsense\n");
    lines.refused(422, "invalid_input", &["`inputs`"]);
}

#[test]
fn the_lines_of_a_body_share_batches_and_the_limit_of_inputs() {
    let serving = Serving::classifier(&["--max-inputs", "200"]);
    let lines = "{\"inputs\": \"good train\"}\n".repeat(200);
    let reply = serving.post_raw("/invocations", "application/jsonlines", lines.as_bytes());
    assert_eq!((reply.status, reply.json().as_array().unwrap().len()), (200, 200));
    assert!(serving.metric("trainyard_batch_inputs_count{model=\"c\"}") <= 3.0);
    let long = "the ".repeat(100);
    let mixed = format!("\"good\"\n\"{long}\"\n{{\"inputs\": [\"good\", \"{long}\"]}}\nnonsense\n");
    assert_eq!(serving.post_raw("/invocations", "application/jsonlines", mixed.as_bytes()).status, 200);
    let failed = |kind: &str| serving.metric(&format!("trainyard_errors_total{{kind=\"{kind}\"}}"));
    assert_eq!((failed("too_many_tokens"), failed("malformed_body")), (2.0, 1.0), "each failure is counted once");
    let more = serving.post_raw("/invocations", "application/jsonlines", format!("{lines}\"one more\"").as_bytes());
    more.refused(422, "too_many_inputs", &["201 inputs"]);
    let rows = serving.send(
        "POST",
        "/invocations",
        &[("content-type", "text/csv"), ("accept", "application/jsonlines")],
        b"a\n\nb\n",
    );
    assert_eq!(rows.text().lines().count(), 3, "a blank row is an empty text");
}

#[test]
fn a_tagger_takes_no_pairs() {
    let yard = yard();
    tagger(&yard.path("t"));
    let serving = Serving::start(yard, &["t"]).ready();
    let answer = serving.post("/invocations", json!({"inputs": [["red train", "blue"], "red"]})).ok();
    assert!(answer[0]["error"].as_str().unwrap().contains("pairs") && answer[1].is_array(), "{answer}");
}

#[test]
fn a_model_that_goes_while_it_works_does_not_hold_up_the_server() {
    let yard = yard();
    for name in ["a", "b"] {
        encoder(&yard.path(&format!("root/{name}")));
    }
    let root = yard.path("root").display().to_string();
    let args = ["--multi-model", "--model-root", &root, "--host", "127.0.0.1", "--max-batch-tokens", "1000000"];
    let serving = Serving::start(yard, &args).ready();
    let long = "the train was in a station ".repeat(10);
    let body = json!({"inputs": vec![long; 250]}).to_string();
    for name in ["a", "b"] {
        serving.post("/models", json!({"model_name": name, "url": name})).ok();
        let mut stream = serving.connect();
        write_request(&mut stream, "POST", &format!("/models/{name}/invoke"), &[], body.as_bytes());
        // Its client leaves while it works.
        std::thread::sleep(Duration::from_millis(50));
    }
    let start = Instant::now();
    for name in ["a", "b"] {
        serving.send("DELETE", &format!("/models/{name}"), &[], b"").ok();
    }
    let mut probe = serving.connect();
    write_request(&mut probe, "GET", "/ping", &[], b"");
    let mut status = [0; 12];
    probe.read_exact(&mut status).unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
