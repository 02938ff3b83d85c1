//! The engine's promises, kept over HTTP.

use serde_json::{Value, json};

use crate::common::write_model;
use crate::rig::{Serving, classifier, encoder, yard};

/// Texts of all lengths.
fn texts() -> Vec<String> {
    (0..40).map(|i| ["good train", "bad", "we saw the red station ."][i % 3].repeat(1 + i % 5)).collect()
}

fn embeddings(serving: &Serving, inputs: Value) -> Vec<Value> {
    serving.post("/embed", json!({"inputs": inputs})).ok().as_array().unwrap().clone()
}

#[test]
fn a_text_has_the_same_bits_alone_and_beside_any_neighbours() {
    for dtype in ["f32", "bf16", "int8"] {
        let serving = Serving::encoder(&["--dtype", dtype, "--max-batch-tokens", "100"]);
        let texts = texts();
        let together = embeddings(&serving, json!(texts));
        let alone: Vec<Value> = texts.iter().map(|text| embeddings(&serving, json!(text)).remove(0)).collect();
        assert_eq!(together, alone, "{dtype}");
        // And while other requests fill the batches.
        std::thread::scope(|scope| {
            let noise = scope.spawn(|| (0..20).for_each(|_| drop(embeddings(&serving, json!(texts)))));
            for (text, alone) in texts.iter().zip(&alone) {
                assert_eq!(&embeddings(&serving, json!(text))[0], alone, "{dtype}");
            }
            noise.join().unwrap();
        });
    }
}

#[test]
fn teams_give_the_same_bits_as_one() {
    let ask = |args: &[&str]| embeddings(&Serving::encoder(args), json!(texts()));
    assert_eq!(ask(&["--threads", "2"]), ask(&["--threads", "2", "--teams", "2"]));
}

#[test]
fn int8_and_bf16_are_near_f32() {
    let vector = |dtype| -> Vec<f64> {
        let rows = embeddings(&Serving::encoder(&["--dtype", dtype]), json!("we saw a lovely train"));
        serde_json::from_value(rows[0].clone()).unwrap()
    };
    let exact = vector("f32");
    for dtype in ["bf16", "int8"] {
        let cosine: f64 = exact.iter().zip(vector(dtype)).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.995, "{dtype}: {cosine}");
    }
}

#[test]
fn roberta_takes_512_tokens_of_its_514_positions() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models/tokenizer-roberta-base");
    if !source.exists() {
        return eprintln!("skipped: no {}", source.display());
    }
    let yard = yard();
    let dir = yard.path("r");
    write_model(
        &dir,
        &json!({
            "architectures": ["RobertaForSequenceClassification"], "model_type": "roberta", "vocab_size": 50265,
            "max_position_embeddings": 514, "pad_token_id": 1, "type_vocab_size": 1, "id2label": {"0": "a", "1": "b"},
        }),
    );
    std::fs::remove_file(dir.join("vocab.txt")).unwrap();
    for file in ["vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(source.join(file), dir.join(file)).unwrap();
    }
    let serving = Serving::start(yard, &["r"]).ready();
    for (tokens, fits) in [(510, true), (511, true), (512, true), (513, false)] {
        // " the" is one token; two more stand around the text.
        let text = " the".repeat(tokens - 2);
        let reply = serving.post("/predict", json!({"inputs": text}));
        if fits {
            reply.ok();
        } else {
            reply.refused(422, "too_many_tokens", &["512 tokens"]);
            serving.post("/predict", json!({"inputs": text, "truncate": true})).ok();
        }
    }
}

#[test]
fn numbers_that_are_none_are_an_error_and_never_null() {
    let yard = yard();
    classifier(&yard.path("c"));
    let mut tensors = yard.tensors("c");
    tensors.iter_mut().filter(|(name, ..)| name == "classifier.bias").for_each(|(_, _, values)| values[1] = f32::NAN);
    yard.write_tensors("c", &tensors);
    let serving = Serving::start(yard, &["c"]).ready();
    serving.post("/invocations", json!({"inputs": "good"})).refused(500, "not_finite", &["NaN"]);
    serving.post("/predict", json!({"inputs": "good"})).refused(500, "not_finite", &["NaN"]);
}

#[test]
fn several_models_answer_by_name_and_the_first_by_default() {
    let yard = yard();
    classifier(&yard.path("c"));
    encoder(&yard.path("e"));
    let serving = Serving::start(yard, &["labels=c", "vectors=e"]).ready();
    serving.post("/predict", json!({"inputs": "good"})).ok();
    serving.post("/embed", json!({"inputs": "good"})).ok();
    let target = [("x-amzn-sagemaker-target-model", "labels"), ("content-type", "application/json")];
    let wrong = serving.send("POST", "/embed", &target, b"{\"inputs\": \"good\"}");
    wrong.refused(422, "wrong_task", &["text-classification", "/predict"]);
    let body = json!({"model": "vectors", "input": "good"});
    assert_eq!(serving.post("/v1/embeddings", body).ok()["data"][0]["embedding"].as_array().unwrap().len(), 32);
    let target = [("x-amzn-sagemaker-target-model", "vectors"), ("content-type", "application/json")];
    let reply = serving.send("POST", "/invocations", &target, b"{\"inputs\": \"good\"}");
    assert_eq!(reply.ok()[0].as_array().unwrap().len(), 32);
    serving.post("/models/nothing/invoke", json!({"inputs": "x"})).refused(404, "model_not_found", &["labels"]);
}
