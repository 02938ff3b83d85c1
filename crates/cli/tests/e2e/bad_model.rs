//! Models that are damaged, foreign or not what they say.

use std::io::{Cursor, Write};

use serde_json::json;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::common::{Yard, write_model};

/// Every command that loads the model refuses it with these words.
#[track_caller]
fn refuse(yard: &Yard, model: &str, parts: &[&str]) {
    yard.run(&["predict", model, "a train", "--json"]).refused(parts);
    yard.run(&["eval", model, "train.tsv", "--json"]).refused(parts);
    yard.run(&["package", model]).refused(parts);
    yard.train(&[&format!("model={model}"), "out=new"]).refused(parts);
    assert!(!yard.path("new").exists(), "nothing was begun");
}

#[test]
fn an_architecture_that_is_not_supported() {
    let yard = Yard::new();
    yard.edit_config("base", &json!({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}));
    let parts = [
        "base",
        "config.json: architecture T5ForConditionalGeneration is not supported",
        "BERT, RoBERTa and DistilBERT",
    ];
    refuse(&yard, "base", &parts);
}

#[test]
fn a_config_and_tensors_that_disagree() {
    let yard = Yard::new();
    yard.edit_config("base", &json!({"intermediate_size": 128}));
    let parts =
        ["tensor `encoder.layer.0.intermediate.dense.weight` has shape [64, 32]", "config.json asks for [128, 32]"];
    refuse(&yard, "base", &parts);
    yard.edit_config("base", &json!({"intermediate_size": 64, "num_hidden_layers": 3}));
    refuse(
        &yard,
        "base",
        &["the weights lack tensors that config.json asks for (16, the first is `", "encoder.layer.2."],
    );
    yard.edit_config("base", &json!({"num_hidden_layers": 2, "vocab_size": 50}));
    refuse(&yard, "base", &["the tokenizer has", "tokens but the model only 50 embeddings"]);
}

#[test]
fn a_safetensors_file_that_was_cut_off() {
    let yard = Yard::new();
    let whole = yard.read("base/model.safetensors");
    yard.write("base/model.safetensors", &whole[..whole.len() - 100]);
    refuse(&yard, "base", &["base/model.safetensors", "tensor `", "the file is truncated"]);
    yard.write("base/model.safetensors", &whole[..5]);
    refuse(&yard, "base", &["base/model.safetensors", "5 bytes, too short"]);
}

#[test]
fn a_header_longer_than_its_file() {
    let yard = Yard::new();
    let mut bytes = yard.read("base/model.safetensors");
    let length = bytes.len() as u64;
    bytes[..8].copy_from_slice(&(length + 10).to_le_bytes());
    yard.write("base/model.safetensors", &bytes);
    refuse(&yard, "base", &["base/model.safetensors", &format!("has only {length} bytes: the file is truncated")]);
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    yard.write("base/model.safetensors", &bytes);
    refuse(&yard, "base", &["base/model.safetensors", "announce a header of 18446744073709551615 bytes"]);
}

#[test]
fn a_pickle_that_asks_for_more_than_tensors() {
    let yard = Yard::new();
    std::fs::remove_file(yard.path("base/model.safetensors")).unwrap();
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let pickle = b"\x80\x02cposix\nsystem\nX\x12\x00\x00\x00touch pickle_was_runq\x00\x85R.";
    for (name, bytes) in [("m/data.pkl", &pickle[..]), ("m/byteorder", b"little"), ("m/version", b"3\n")] {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    yard.write("base/pytorch_model.bin", zip.finish().unwrap().into_inner());
    refuse(
        &yard,
        "base",
        &["base/pytorch_model.bin", "refused: the pickle names `posix.system` (byte 2", "safetensors"],
    );
    assert!(!yard.path("pickle_was_run").exists());
}

#[test]
fn a_model_without_its_classifier() {
    let yard = Yard::trained();
    // A bare encoder has nothing to evaluate, and fine-tuning it is no error.
    yard.run(&["eval", "base", "train.tsv"]).refused(&["has no head to evaluate", "fine-tune it first"]);

    let mut tensors = yard.tensors("runs/job/model");
    tensors.retain(|(name, ..)| !name.starts_with("classifier."));
    yard.copy_dir("runs/job/model", "headless");
    yard.write_tensors("headless", &tensors);
    let parts = [
        "the weights lack tensors that config.json asks for (2, the first is",
        "`classifier.weight`",
        "no trained head; fine-tune it first with `trainyard train`",
    ];
    yard.run(&["eval", "headless", "train.tsv"]).refused(&parts);
    yard.run(&["predict", "headless", "a train"]).refused(&parts);
    let ran = yard.train(&["model=headless", "out=new"]).ok();
    assert!(
        ran.stderr.contains("newly initialised, not in the model file: classifier.weight and 1 more"),
        "{}",
        ran.stderr
    );
}

#[test]
fn another_head_is_replaced_with_a_notice() {
    let yard = Yard::trained();
    yard.write("train.tsv", "text\tlabel\na good train\tyes\na bad train\tno\na train\tunclear\nit was\tno\n");
    let names = r#"data.label_names=["yes", "no", "unclear"]"#;
    let ran = yard.train(&["model=runs/job", "out=new", "data.validation=[]", "batch.size=2", names]).ok();
    let notice = "newly initialised, of another shape in the model file: classifier.weight ([2, 32] in the file, [3, 32] needed)";
    assert!(ran.stderr.contains(notice), "{}", ran.stderr);
}

#[test]
fn weights_that_are_no_numbers_give_no_answer() {
    let yard = Yard::trained();
    let mut tensors = yard.tensors("runs/job/model");
    tensors.iter_mut().find(|(name, ..)| name.ends_with("layer.1.output.dense.bias")).unwrap().2[0] = f32::NAN;
    yard.write_tensors("runs/job/model", &tensors);
    yard.run(&["predict", "runs/job", "a train"]).refused(&["not finite", "its weights are damaged"]);
    yard.run(&["eval", "runs/job", "train.tsv", "--json"]).refused(&["not finite", "its weights are damaged"]);
}

#[test]
fn a_model_with_a_file_missing() {
    let yard = Yard::new();
    std::fs::remove_file(yard.path("base/vocab.txt")).unwrap();
    refuse(&yard, "base", &["no tokenizer in `base`", "vocab.txt"]);
    let yard = Yard::new();
    std::fs::remove_file(yard.path("base/model.safetensors")).unwrap();
    refuse(&yard, "base", &["no weights in `base`", "pytorch_model.bin"]);
    let yard = Yard::new();
    yard.write("base/config.json", "{\"model_type\": \"bert\", ");
    refuse(&yard, "base", &["base", "config.json is not a JSON object"]);
}

#[test]
fn a_model_that_is_not_there() {
    let yard = Yard::new();
    refuse(
        &yard,
        "models/minilm",
        &["`models/minilm` is not a model: there is no such file or directory", "hf:org/name"],
    );
    write_model(&yard.path("other"), &json!({"architectures": ["BertModel"]}));
    refuse(&yard, "other/config.json", &["`other/config.json` is not a model", ".tar.gz"]);
}
