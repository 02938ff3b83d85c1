//! What peers answer with 500, 503 or plain text. The rows of the table of awkward inputs, each on every route that takes
//! a text.

use serde_json::json;

use crate::common::MAX_TOKENS;
use crate::rig::Serving;

/// Routes of a classifier with a good body for each.
const ROUTES: [&str; 3] = ["/invocations", "/predict", "/"];

#[test]
fn awkward_bodies_get_a_status_a_code_and_a_place() {
    let serving = Serving::classifier(&["--max-body-bytes", "1000000"]);
    for route in ROUTES {
        let json = |body: &[u8]| serving.post_raw(route, "application/json", body);
        json(b"{\"inputs\": \"good\"}").ok();
        json(b"{\"inputs\": \"\"}").ok();
        json(b"\xef\xbb\xbf{\"inputs\": \"good\"}").ok();
        json(b"{\"inputs\": []}").refused(422, "invalid_input", &["empty list"]);
        let missing = json(b"{}").refused(422, "invalid_input", &["`inputs` is missing"]);
        assert_eq!(missing["field"], "inputs");
        json(b"{\"texts\": \"good\"}").refused(422, "invalid_input", &["`texts`", "`inputs`"]);
        let malformed = json(b"{\"inputs\":\n \"good\",}").refused(400, "malformed_body", &["line 2"]);
        assert_eq!((&malformed["line"], &malformed["column"]), (&json!(2), &json!(9)));
        let bytes = json(b"{\"inputs\": \"go\xffod\"}").refused(400, "invalid_utf8", &["offset 14"]);
        assert_eq!(bytes["byte"], 14);
        json(b"{\"inputs\": \"a\\ud800b\"}").refused(400, "malformed_body", &["surrogate"]);
        json(b"").refused(400, "malformed_body", &["EOF"]);
        json(b"null").refused(422, "invalid_input", &[]);
        json(&[b'['; 10_000]).refused(400, "malformed_body", &["recursion limit"]);
        json(b"{\"inputs\": 5}").refused(422, "invalid_input", &["`inputs`"]);
        json(&vec![b' '; 1_000_001]).refused(413, "payload_too_large", &["1000000 bytes", "--max-body-bytes"]);
        serving.post_raw(route, "image/png", b"x").refused(415, "unsupported_media_type", &["image/png"]);
        let form = serving.post_raw(route, "application/x-www-form-urlencoded", b"{}");
        form.refused(415, "unsupported_media_type", &["curl"]);
    }
    // Plain text is one text where any content type is taken, and refused in JSON elsewhere.
    serving.post_raw("/invocations", "text/plain", b"good").ok();
    serving.post_raw("/predict", "text/plain", b"good").refused(415, "unsupported_media_type", &["application/json"]);
    serving.get("/nowhere").refused(404, "no_route", &["/nowhere"]);
    serving.get("/invocations").refused(405, "method_not_allowed", &["GET"]);
}

#[test]
fn a_body_far_over_the_limit_is_read_to_its_end_and_answered() {
    let serving = Serving::classifier(&[]);
    let body = vec![b'x'; 8 << 20];
    serving.post_raw("/invocations", "application/json", &body).refused(413, "payload_too_large", &["8388608 bytes"]);
}

#[test]
fn one_bad_input_leaves_the_others_their_results() {
    let serving = Serving::classifier(&[]);
    let long = "the ".repeat(MAX_TOKENS);
    let answer = serving.post("/invocations", json!({"inputs": ["good", 5, long, "bad"]})).ok();
    let alone = serving.post("/invocations", json!({"inputs": "good"})).ok();
    assert_eq!(answer[0], alone[0]);
    assert_eq!(answer[1]["error_type"], "invalid_input");
    assert_eq!(answer[1]["field"], "inputs[1]");
    assert_eq!(answer[2]["error_type"], "too_many_tokens");
    assert!(answer[3]["label"].is_string());
    let all_bad = serving.post("/invocations", json!({"inputs": [5, null]}));
    all_bad.refused(422, "invalid_input", &["inputs[0]"]);
    let predicted = serving.post("/predict", json!({"inputs": [["good"], [long]]})).ok();
    assert!(predicted[0][0]["score"].is_f64() && predicted[1]["error_type"] == "too_many_tokens");
    assert_eq!(serving.metric("trainyard_errors_total{kind=\"too_many_tokens\"}"), 2.0);
}

#[test]
fn a_text_that_is_too_long_is_cut_only_on_request_and_the_error_says_how() {
    let long = "the ".repeat(MAX_TOKENS * 20);
    let serving = Serving::classifier(&[]);
    let refused = serving.post("/invocations", json!({"inputs": long}));
    refused.refused(422, "too_many_tokens", &["64 tokens", "`truncation: true`", "--auto-truncate"]);
    for parameters in [json!({"truncation": true}), json!({"truncation": "longest_first"}), json!({"truncate": true})] {
        let one = serving.post("/invocations", json!({"inputs": long, "parameters": parameters})).ok();
        let list = serving.post("/invocations", json!({"inputs": [long], "parameters": parameters})).ok();
        assert_eq!(one, list, "one rule for a text and a list");
    }
    serving.post("/predict", json!({"inputs": long, "truncate": true})).ok();
    let limited = json!({"inputs": "the the the the", "parameters": {"max_length": 5}});
    serving.post("/invocations", limited).refused(422, "too_many_tokens", &["5 tokens"]);
    let too_much = json!({"inputs": "the", "parameters": {"max_length": 65}});
    serving.post("/invocations", too_much).refused(422, "invalid_input", &["at most 64"]);
    for flag in [&["--auto-truncate"][..], &["--auto-truncate", "true"]] {
        Serving::classifier(flag).post("/invocations", json!({"inputs": long})).ok();
    }
}

#[test]
fn the_end_that_is_cut_can_be_chosen() {
    let serving = Serving::classifier(&[]);
    let text = format!("good {}", "the ".repeat(100));
    let ask = |side: &str| {
        serving.post("/predict", json!({"inputs": text, "truncate": true, "truncation_direction": side})).ok()
    };
    assert_ne!(ask("left"), ask("Right"));
}

#[test]
fn control_tokens_in_a_text_are_text_unless_allowed() {
    let serving = Serving::classifier(&[]);
    let ask = |parameters| serving.post("/invocations", json!({"inputs": "good [SEP] bad", "parameters": parameters}));
    let text = ask(json!({"top_k": null})).ok();
    let control = ask(json!({"top_k": null, "allow_special_tokens": true})).ok();
    assert_ne!(text, control);
    let spelled =
        serving.post("/invocations", json!({"inputs": "good [ SEP ] bad", "parameters": {"top_k": null}})).ok();
    assert_eq!(text, spelled, "the same tokens as when it is spelled apart");
}
