//! Flags and environment variables: what they may be, and what is refused before anything is served.

use serde_json::json;

use crate::rig::{Serving, classifier, yard};

#[test]
fn numbers_that_nothing_could_hold_are_refused() {
    let yard = yard();
    for (flag, value) in [
        ("--max-connections", "18446744073709551615"),
        ("--max-body-bytes", "9999999999999"),
        ("--workers", "257"),
        ("--max-queue", "0"),
        ("--model-memory", "0"),
    ] {
        yard.run(&["serve", "c", flag, value]).refused(&[flag, value]);
    }
}

#[test]
fn a_request_has_no_more_inputs_than_the_queue_holds() {
    let serving = Serving::classifier(&["--max-queue", "2"]);
    assert!(serving.log().contains("--max-inputs is 2"), "{}", serving.log());
    let reply = serving.post("/invocations", json!({"inputs": ["a", "b", "c"]}));
    reply.refused(422, "too_many_inputs", &["limit of 2"]);
    serving.post("/invocations", json!({"inputs": ["a", "b"]})).ok();
}

#[test]
fn empty_variables_say_nothing() {
    let yard = yard();
    classifier(&yard.path("c"));
    let names = [
        "HF_TASK",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "RUST_LOG",
        "SAGEMAKER_BIND_TO_PORT",
        "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB",
        "SAGEMAKER_MODEL_SERVER_TIMEOUT",
        "SAGEMAKER_MODEL_SERVER_WORKERS",
        "SAGEMAKER_MULTI_MODEL",
        "SAGEMAKER_PROGRAM",
        "TRAINYARD_API_KEY_FILE",
    ];
    let serving = Serving::start_with(yard, &["c"], &names.map(|name| (name, ""))).ready();
    serving.post("/invocations", json!({"inputs": "a"})).ok();
}

#[test]
fn the_help_names_the_variables_of_the_container_contract() {
    let help = yard().run(&["serve", "--help"]).stdout;
    for name in ["HF_TASK", "SAGEMAKER_MULTI_MODEL", "SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_MODEL_SERVER_TIMEOUT"] {
        assert!(help.contains(&format!("env: {name}")), "{name}");
    }
}

#[test]
fn the_task_that_is_asked_for_is_that_of_built_in_models() {
    let yard = yard();
    classifier(&yard.path("c"));
    yard.write(
        "m/code/inference.py",
        "def model_fn(d):\n    return 1\ndef predict_fn(data, model):\n    return data\n",
    );
    let serve = |model: &str| ["serve", model, "--port", "0", "--task", "summarization"].map(String::from);
    let refused = yard.run(&serve("c").each_ref().map(String::as_str));
    refused.refused(&["text-classification", "HF_TASK", "summarization"]);
    let environments = yard.path("environments").display().to_string();
    let serving =
        Serving::start_with(yard, &["m", "--environments", &environments], &[("HF_TASK", "summarization")]).ready();
    assert_eq!(serving.post("/invocations", json!(7)).ok(), json!(7));
}

#[test]
fn the_default_answer_is_of_a_type_that_can_be_written() {
    let yard = yard();
    classifier(&yard.path("c"));
    yard.run(&["serve", "c", "--default-accept", "image/png"]).refused(&["--default-accept", "text/csv"]);
    let npy = ["serve", "c", "--port", "0", "--default-accept", "application/x-npy"];
    yard.run(&npy).refused(&["application/x-npy", "text/csv"]);
    let serving = Serving::start(yard, &["c", "--default-accept", "text/csv; charset=utf-8"]).ready();
    let reply = serving.post("/invocations", json!({"inputs": "a"}));
    assert!(reply.status == 200 && reply.header("content-type").unwrap().starts_with("text/csv"), "{}", reply.text());
}
