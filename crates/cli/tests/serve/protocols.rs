//! Every protocol's forms, as its clients send and expect them.

use serde_json::{Value, json};

use crate::rig::{Serving, tagger, yard};

fn is_score(value: &Value) -> bool {
    value.as_f64().is_some_and(|score| (0.0..=1.0).contains(&score))
}

#[test]
fn hugging_face_text_classification() {
    let serving = Serving::classifier(&[]);
    let ask = |body: Value| serving.post("/invocations", body).ok();
    let one = ask(json!({"inputs": "good"}));
    assert_eq!(one.as_array().unwrap().len(), 1);
    assert!(is_score(&one[0]["score"]));
    let two = ask(json!({"inputs": ["good", "bad"]}));
    assert_eq!((&two[0], two.as_array().unwrap().len()), (&one[0], 2));
    let all = ask(json!({"inputs": "good", "parameters": {"top_k": null}}));
    let scores: Vec<f64> = all.as_array().unwrap().iter().map(|label| label["score"].as_f64().unwrap()).collect();
    assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-9 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let lists = ask(json!({"inputs": ["good"], "parameters": {"top_k": 2}}));
    assert_eq!(lists[0].as_array().unwrap().len(), 2);
    let pairs = ask(json!({"inputs": [["good", "bad"], {"text": "good", "text_pair": "bad"}]}));
    assert_eq!(pairs[0], pairs[1]);
    assert_ne!(pairs[0], one[0], "a pair is not its first text");
    let logits = ask(json!({"inputs": "good", "parameters": {"function_to_apply": "none", "top_k": null}}));
    let sigmoids = ask(json!({"inputs": "good", "parameters": {"function_to_apply": "sigmoid", "top_k": null}}));
    let logit = logits[0]["score"].as_f64().unwrap();
    assert!((sigmoids[0]["score"].as_f64().unwrap() - 1.0 / (1.0 + (-logit).exp())).abs() < 1e-12);
    let refused = serving.post("/invocations", json!({"inputs": "good", "parameters": {"topk": 2}}));
    refused.refused(422, "invalid_input", &["topk", "top_k"]);
}

#[test]
fn hugging_face_token_classification_counts_characters() {
    let yard = yard();
    tagger(&yard.path("t"));
    let serving = Serving::start(yard, &["t"]).ready();
    let text = "é the red train";
    let ask = |strategy: &str| {
        let parameters = json!({"aggregation_strategy": strategy, "ignore_labels": []});
        serving.post("/invocations", json!({"inputs": text, "parameters": parameters})).ok()
    };
    let tokens = ask("none");
    let characters: Vec<char> = text.chars().collect();
    for token in tokens.as_array().unwrap() {
        let range = token["start"].as_u64().unwrap() as usize..token["end"].as_u64().unwrap() as usize;
        let word: String = characters[range].iter().collect();
        assert!(word == token["word"] || word == "é", "{token}");
        assert!(is_score(&token["score"]) && token["entity"].is_string() && token["index"].is_u64());
    }
    assert_eq!(tokens.as_array().unwrap().len(), 4);
    for strategy in ["simple", "first", "average", "max"] {
        let entities = ask(strategy);
        assert!(entities[0]["entity_group"].is_string(), "{strategy}: {entities}");
        assert_eq!(entities.as_array().unwrap().last().unwrap()["end"], 15);
    }
    let lists = serving.post("/invocations", json!({"inputs": [text, text]})).ok();
    assert_eq!((lists.as_array().unwrap().len(), &lists[0]), (2, &lists[1]));
    serving.post("/predict", json!({"inputs": text})).refused(422, "wrong_task", &["/invocations"]);
}

#[test]
fn hugging_face_feature_extraction_pools_as_asked() {
    let serving = Serving::encoder(&[]);
    let ask =
        |parameters: Value| serving.post("/invocations", json!({"inputs": "the train", "parameters": parameters})).ok();
    let pooled = ask(json!({}));
    assert_eq!((pooled.as_array().unwrap().len(), pooled[0].as_array().unwrap().len()), (1, 32));
    let states = ask(json!({"pooling": "none"}));
    let rows: Vec<Vec<f64>> = serde_json::from_value(states[0].clone()).unwrap();
    assert_eq!(rows.len(), 4, "two words and two control tokens");
    let means: Vec<f64> =
        serde_json::from_value(ask(json!({"pooling": "mean", "normalize": false}))[0].clone()).unwrap();
    let mean = rows.iter().map(|row| row[0]).sum::<f64>() / 4.0;
    assert!((mean - means[0]).abs() < 1e-5, "{mean} {}", means[0]);
    assert_ne!(ask(json!({"pooling": "cls"})), pooled);
}

#[test]
fn sagemaker_content_types_in_and_out() {
    let serving = Serving::classifier(&[]);
    let send = |content: &str, accept: &str, body: &[u8]| {
        serving.send("POST", "/invocations", &[("content-type", content), ("accept", accept)], body)
    };
    let csv = send("text/csv", "text/csv", b"good\n\"bad, bad\"\n");
    assert_eq!(csv.header("content-type"), Some("text/csv"));
    assert_eq!(csv.text().lines().count(), 2, "{}", csv.text());
    let lines =
        send("application/jsonlines", "application/jsonlines", b"{\"inputs\":\"good\"}\n{\"inputs\":5}\n\"bad\"\n");
    let lines: Vec<Value> = lines.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0][0]["label"].is_string() && lines[1]["error"].is_string() && lines[2][0]["label"].is_string());
    let json = send("text/plain", "*/*", "gut 😀".as_bytes()).ok();
    assert!(json[0]["label"].is_string());
    send("application/json", "image/png", b"{\"inputs\":\"a\"}").refused(406, "not_acceptable", &["image/png"]);
}

#[test]
fn sagemaker_headers_come_back() {
    let serving = Serving::classifier(&[]);
    let headers = [
        ("content-type", "application/json"),
        ("x-amzn-sagemaker-custom-attributes", "trace=7"),
        ("x-amzn-sagemaker-target-variant", "blue"),
    ];
    let reply = serving.send("POST", "/invocations", &headers, b"{\"inputs\":\"a\"}");
    reply.ok();
    assert_eq!(reply.header("x-amzn-sagemaker-custom-attributes"), Some("trace=7"));
    assert_eq!(reply.header("x-amzn-invoked-production-variant"), Some("blue"));
}

#[test]
fn the_container_contract_by_environment() {
    let yard = yard();
    crate::rig::classifier(&yard.path("ml/model"));
    let base = yard.path("ml").display().to_string();
    let environment = [
        ("SAGEMAKER_BASE_DIR", base.as_str()),
        ("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", "text/csv"),
        ("SAGEMAKER_MAX_PAYLOAD_IN_MB", "1"),
        ("HF_TASK", "text-classification"),
    ];
    let serving = Serving::start_with(yard, &["serve"], &environment).ready();
    serving.await_log("other machines can connect");
    let reply = serving.post("/invocations", json!({"inputs": "good"}));
    assert_eq!(reply.header("content-type"), Some("text/csv"));
    serving.post_raw("/invocations", "text/plain", &vec![b'a'; 1 << 20 | 1]).refused(
        413,
        "payload_too_large",
        &["1048576"],
    );
}

#[test]
fn text_embeddings_inference() {
    let serving = Serving::classifier(&[]);
    let labels = serving.post("/predict", json!({"inputs": "good"})).ok();
    assert_eq!(labels.as_array().unwrap().len(), 3);
    let pair = serving.post("/predict", json!({"inputs": ["good", "bad"]})).ok();
    let batch = serving.post("/predict", json!({"inputs": [["good"], ["good", "bad"]]})).ok();
    assert_eq!((&batch[0], &batch[1]), (&labels, &pair));
    let raw = serving.post("/predict", json!({"inputs": "good", "raw_scores": true})).ok();
    let sum: f64 = raw.as_array().unwrap().iter().map(|label| label["score"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() > 1e-6, "logits do not add up to 1");
    let info = serving.get("/info").ok();
    assert_eq!((&info["max_input_length"], &info["model_dtype"]), (&json!(64), &json!("f32")));
    assert_eq!(info["model_type"]["classifier"]["id2label"]["2"], "up");
    assert_eq!(serving.get("/health").status, 200);
    // As Hugging Face's client reads it: a list of labels for every text.
    let lists = serving.post("/", json!({"inputs": "good"})).ok();
    assert_eq!(lists, json!([labels]));
    assert_eq!(serving.post("/", json!({"inputs": "good", "parameters": {"top_k": 1}})).ok(), json!([[labels[0]]]));

    let serving = Serving::encoder(&[]);
    let vectors = serving.post("/embed", json!({"inputs": ["good", "bad"]})).ok();
    let length: f64 = vectors[0].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let longer = serving.post("/embed", json!({"inputs": "good", "normalize": false})).ok();
    assert_ne!(longer[0], vectors[0]);
    assert_eq!(serving.post("/", json!({"inputs": "good", "normalize": false})).ok(), longer);
}

#[test]
fn openai_embeddings() {
    let serving = Serving::encoder(&[]);
    let ask = |body: Value| serving.post("/v1/embeddings", body);
    let answer = ask(json!({"model": "e", "input": ["good", "", "bad"]})).ok();
    assert_eq!(answer["object"], "list");
    assert_eq!((&answer["data"][2]["index"], &answer["data"][2]["object"]), (&json!(2), &json!("embedding")));
    assert_eq!(answer["usage"], json!({"prompt_tokens": 8, "total_tokens": 8}));
    assert!(
        ask(json!({"model": "e", "input": "a", "encoding_format": "base64"})).ok()["data"][0]["embedding"].is_string()
    );
    let error = |reply: crate::rig::Reply, status: u16, code: &str| {
        assert_eq!(reply.status, status, "{}", reply.text());
        assert_eq!(reply.json()["error"]["code"], code);
        reply.json()["error"].clone()
    };
    assert_eq!(error(ask(json!({"model": "e"})), 422, "invalid_input")["param"], "input");
    assert_eq!(error(ask(json!({"model": "e", "input": 5})), 422, "invalid_input")["param"], "input");
    error(ask(json!({"model": "e", "input": [1, 2]})), 422, "invalid_input");
    error(ask(json!({"model": "gpt", "input": "a"})), 404, "model_not_found");
    error(ask(json!({"model": "e", "input": "a", "dimensions": 7})), 422, "invalid_input");
    let long = ask(json!({"model": "e", "input": ["good", "the ".repeat(100)]})).ok();
    assert!(long["data"][1]["embedding"].is_null() && long["data"][1]["error"]["error_type"] == "too_many_tokens");
    assert_eq!(serving.get("/v1/models").ok()["data"][0]["id"], "e");
    assert_eq!(serving.get("/v1/models/e").ok()["object"], "model");
    assert_eq!(error(serving.get("/v1/models/x"), 404, "model_not_found")["type"], "invalid_request_error");
    error(serving.get("/v1/completions"), 404, "no_route");
    error(serving.get("/v1/embeddings"), 405, "method_not_allowed");
}

#[test]
fn kserve_v2() {
    let serving = Serving::classifier(&[]);
    assert_eq!(serving.get("/v2/health/live").status, 200);
    assert_eq!(serving.get("/v2/health/ready").status, 200);
    assert_eq!(serving.get("/v2/models/c").ok()["inputs"][0]["datatype"], "BYTES");
    assert_eq!(serving.get("/v2/models/c/versions/1/ready").status, 200);
    serving.get("/v2/models/c/versions/2").refused(404, "model_not_found", &["version"]);
    let long = "the ".repeat(100);
    let tensor = json!({"name": "text", "shape": [2], "datatype": "BYTES", "data": ["good", long]});
    let answer = serving.post("/v2/models/c/infer", json!({"id": "1", "inputs": [tensor]})).ok();
    let output =
        |name: &str| answer["outputs"].as_array().unwrap().iter().find(|o| o["name"] == name).unwrap()["data"].clone();
    assert_eq!(answer["id"], "1");
    assert!(["down", "level", "up"].contains(&output("label")[0].as_str().unwrap()));
    assert!(output("error")[0] == "" && output("error")[1].as_str().unwrap().contains("64 tokens"));
    assert_eq!(output("scores").as_array().unwrap().len(), 6);
    // Triton's binary extension, both ways.
    let input = json!({"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 8}});
    let head =
        json!({"inputs": [input], "outputs": [{"name": "score", "parameters": {"binary_data": true}}]}).to_string();
    let body = [head.as_bytes(), b"\x04\0\0\0good"].concat();
    let length = head.len().to_string();
    let reply = serving.send("POST", "/v2/models/c/infer", &[("inference-header-content-length", &length)], &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let length: usize = reply.header("inference-header-content-length").unwrap().parse().unwrap();
    let score = f64::from_le_bytes(reply.body[length..].try_into().unwrap());
    assert_eq!(json!(score), output("score")[0]);
}

#[test]
fn every_route_is_in_the_openapi_document_and_metrics_tell_what_happened() {
    let serving = Serving::classifier(&[]);
    let document = serving.get("/openapi.json").ok();
    for (path, method) in [("/invocations", "post"), ("/models/{name}", "delete"), ("/v2/models/{name}/infer", "post")]
    {
        assert!(document["paths"][path][method].is_object(), "{path}");
    }
    let schema = &document["components"]["schemas"]["ErrorBody"]["properties"];
    assert!(schema["error_type"].is_object(), "{schema}");
    serving.post("/predict", json!({"inputs": [["good"], ["bad train"]]})).ok();
    assert_eq!(serving.metric("trainyard_inputs_total{model=\"c\"}"), 2.0);
    assert_eq!(serving.metric("trainyard_requests_total{route=\"/predict\",method=\"POST\",status=\"200\"}"), 1.0);
    assert_eq!(serving.metric("trainyard_in_flight_requests"), 1.0, "this one");
    for name in ["request", "tokenize", "queue", "infer"] {
        assert!(serving.metric(&format!("trainyard_{name}_seconds_count{{model=\"c\"}}")) >= 1.0, "{name}");
    }
}
