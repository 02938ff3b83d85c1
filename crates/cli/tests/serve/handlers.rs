//! Models with their own `code/inference.py`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::rig::{Serving, classifier, yard};

const SQUARES: &str = "
import os, time
def model_fn(model_dir):
    return 2
def predict_fn(data, model):
    if data == 'die':
        os.kill(os.getpid(), 9)
    if data == 'fail':
        raise RuntimeError('no luck today')
    if data == 'sleep':
        time.sleep(30)
    return data ** model
";

fn serving(script: &str, args: &[&str]) -> Serving {
    let yard = yard();
    yard.write("m/code/inference.py", script);
    let environments = yard.path("environments").display().to_string();
    Serving::start(yard, &[&["m", "--environments", &environments], args].concat()).ready()
}

#[test]
fn a_handler_answers_and_its_failures_say_why() {
    let serving = serving(SQUARES, &["--timeout", "2"]);
    assert_eq!(serving.post("/invocations", json!(7)).ok(), json!(49));
    serving.post("/invocations", json!("fail")).refused(500, "handler_failed", &["RuntimeError", "no luck today"]);
    serving.await_log("no luck today");
    serving.post("/invocations", json!("die")).refused(500, "handler_failed", &["signal"]);
    serving.post("/invocations", json!("sleep")).refused(504, "deadline_exceeded", &[]);
    let start = Instant::now();
    while serving.post("/invocations", json!(3)).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(20), "the worker comes back:\n{}", serving.log());
    }
    assert!(serving.metric("trainyard_worker_restarts_total{model=\"m\"}") >= 2.0);
    serving.post_raw("/invocations", "application/json", b"{").refused(400, "handler_refused", &["JSON"]);
    serving.post("/predict", json!({"inputs": "a"})).refused(422, "wrong_task", &["/invocations"]);
}

#[test]
fn a_handler_that_cannot_load_ends_the_server_with_the_reason() {
    let yard = yard();
    yard.write(
        "m/code/inference.py",
        "def load_fn(model_dir):\n    return 1\ndef predict_fn(data, model):\n    return data\n",
    );
    let environments = yard.path("environments").display().to_string();
    let args = ["serve", "m", "--port", "0", "--environments", &environments];
    yard.run(&args).refused(&["model_fn", "load_fn"]);
    yard.write("m/code/inference.py", "def model_fn(model_dir):\n    raise OSError('no weights here')\n");
    yard.run(&args).refused(&["no weights here"]);
}

#[test]
fn input_and_output_functions_go_around_the_built_in_model() {
    let yard = yard();
    classifier(&yard.path("m"));
    yard.write(
        "m/code/inference.py",
        "def input_fn(body, content_type):\n    return {'inputs': body.split('|')}\n\
         def output_fn(prediction, accept):\n    return '|'.join(p['label'] for p in prediction), 'text/x-labels'\n",
    );
    let environments = yard.path("environments").display().to_string();
    let serving = Serving::start(yard, &["m", "--environments", &environments]).ready();
    let reply = serving.post_raw("/invocations", "text/plain", b"good|bad");
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/x-labels")), "{}", reply.text());
    assert_eq!(reply.text().split('|').count(), 2);
    let plain = serving.post("/predict", json!({"inputs": "good"})).ok();
    assert_eq!(plain[0]["label"], reply.text().split('|').next().unwrap());
}

#[test]
fn no_worker_outlives_the_server() {
    let mut serving = serving(SQUARES, &["--workers", "2"]);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", serving.pid()));
    serving.signal("TERM");
    assert_eq!(serving.wait().code(), Some(0));
    let Ok(children) = children else { return };
    for child in children.split_whitespace() {
        let start = Instant::now();
        while std::path::Path::new(&format!("/proc/{child}")).exists() {
            assert!(start.elapsed() < Duration::from_secs(5), "worker {child} still runs");
        }
    }
}
