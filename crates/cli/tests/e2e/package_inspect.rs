//! `trainyard package` and `trainyard inspect`.

use serde_json::{Value, json};

use crate::common::{Yard, write_model};

#[test]
fn a_packed_model_is_the_same_model() {
    let yard = Yard::trained();
    let ran = yard.run(&["package", "runs/job", "-o", "model.tar.gz"]).ok();
    assert!(ran.stdout.starts_with("model.tar.gz ("), "{}", ran.stdout);
    let mut described = [Value::Null, Value::Null];
    let mut answers = [Value::Null, Value::Null];
    for (i, model) in ["runs/job", "model.tar.gz"].into_iter().enumerate() {
        described[i] = yard.run(&["inspect", model, "--json"]).object();
        answers[i] = yard.run(&["predict", model, "a good train", "a bad station", "--json"]).object();
    }
    assert_eq!(described[0], described[1]);
    assert_eq!(answers[0], answers[1]);
    // The model stands at the archive's root, and the archive is the same whenever it is made.
    let first = yard.read("model.tar.gz");
    assert!(yard.shell("tar -tzf model.tar.gz").ok().stdout.lines().any(|line| line == "config.json"));
    yard.run(&["package", "runs/job/model", "-o", "model.tar.gz"]).ok();
    assert!(yard.read("model.tar.gz") == first);
}

#[test]
fn a_packed_model_and_a_checkpoint_can_be_trained_further() {
    let yard = Yard::trained();
    yard.run(&["package", "runs/job", "-o", "model.tar.gz"]).ok();
    let checkpoint = yard.shell("ls -d runs/job/checkpoints/step-*").ok().stdout;
    for (start, out) in [("model.tar.gz", "runs/from-archive"), (checkpoint.lines().last().unwrap(), "runs/further")] {
        let sets = [format!("model={start:?}"), "schedule.steps=2".into()];
        yard.run(&["train", "job.toml", "--out", out, "--set", &sets[0], "--set", &sets[1]]).ok();
        assert!(yard.path(out).join("model/vocab.txt").is_file(), "{out} lacks the tokenizer's files");
        yard.run(&["predict", out, "a good train"]).ok();
    }
}

#[test]
fn inspect_describes_a_model() {
    let yard = Yard::trained();
    let ran = yard.run(&["inspect", "runs/job", "--tensors"]).ok();
    for part in ["BERT", "labels        down, up", "2, hidden size 32", "bert.pooler.dense.bias", "no problems found"] {
        assert!(ran.stdout.contains(part), "{}should contain: {part}", ran.stdout);
    }
    let object = yard.run(&["inspect", "runs/job", "--json"]).object();
    assert_eq!((&object["labels"], &object["problems"]), (&json!(["down", "up"]), &json!([])));
    assert_eq!((&object["max_tokens"], &object["layers"]), (&json!(64), &json!(2)));
    let scalars =
        |tensor: &Value| tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product::<u64>();
    let sum: u64 = object["tensors"].as_array().unwrap().iter().map(scalars).sum();
    assert_eq!(object["parameters"].as_u64(), Some(sum));
    assert_eq!(object["tokenizer"]["vocabulary"], yard.text("base/vocab.txt").lines().count());
}

#[test]
fn inspect_lists_everything_that_is_wrong_and_package_refuses_it() {
    let yard = Yard::trained();
    let mut tensors = yard.tensors("runs/job/model");
    let at = |name: &str| tensors.iter().position(|(other, ..)| other == name).unwrap();
    let (missing, turned) =
        (at("bert.encoder.layer.1.output.dense.bias"), at("bert.encoder.layer.0.output.dense.weight"));
    tensors[turned].1.reverse();
    tensors[missing].0 = "bert.stray".into();
    yard.copy_dir("runs/job/model", "damaged");
    yard.write_tensors("damaged", &tensors);
    std::fs::remove_file(yard.path("damaged/tokenizer.json")).unwrap();
    std::fs::remove_file(yard.path("damaged/vocab.txt")).unwrap();

    let problems = yard.run(&["inspect", "damaged", "--json"]).object()["problems"].clone();
    let text = yard.run(&["inspect", "damaged"]).ok().stdout;
    for part in [
        "the weights lack bert.encoder.layer.1.output.dense.bias",
        "bert.encoder.layer.0.output.dense.weight ([64, 32] in the file, [32, 64] needed)",
        "in the weights but not used: bert.stray",
        "no tokenizer in `damaged`",
    ] {
        assert!(problems.to_string().contains(part), "{problems} should contain: {part}");
        assert!(text.contains(part), "{text}should contain: {part}");
    }
    assert_eq!(problems.as_array().unwrap().len(), 4);
    yard.run(&["package", "damaged", "-o", "damaged.tar.gz"]).refused(&["no tokenizer in `damaged`"]);
    assert!(!yard.path("damaged.tar.gz").exists());
}

#[test]
fn inspect_goes_as_far_as_it_can() {
    let yard = Yard::new();
    write_model(&yard.path("odd"), &json!({"architectures": ["BertModel"]}));
    yard.edit_config("odd", &json!({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}));
    let object = yard.run(&["inspect", "odd", "--json"]).object();
    assert!(object["problems"][0].as_str().unwrap().contains("GPT2LMHeadModel is not supported"), "{object}");
    assert!(!object["tensors"].as_array().unwrap().is_empty());

    yard.write("odd/model.safetensors", "");
    let problems = yard.run(&["inspect", "odd", "--json"]).object()["problems"].to_string();
    assert!(problems.contains("not a safetensors file"), "{problems}");
}

#[test]
fn what_is_no_model_is_named() {
    let yard = Yard::new();
    yard.run(&["inspect", "nowhere"]).refused(&["`nowhere` is not a model: there is no such file or directory"]);
    yard.write("empty/readme", "");
    yard.run(&["inspect", "empty"]).refused(&["found neither `empty/config.json` nor `empty/model/config.json`"]);
    yard.write("broken.tar.gz", "no archive");
    yard.run(&["inspect", "broken.tar.gz"]).refused(&["broken.tar.gz", "gzip"]);
    yard.run(&["package", "base", "-o", "nowhere/model.tar.gz"]).failed(&["nowhere/model.tar.gz"]);
}
