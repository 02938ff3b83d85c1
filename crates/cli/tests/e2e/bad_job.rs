//! Jobs and arguments that are wrong.

use crate::common::Yard;

#[test]
fn an_unknown_key_gets_the_nearest_name() {
    let yard = Yard::new();
    let job = yard.text("job.toml").replace("lr = 0.003", "rl = 0.003\nweight_dacay = 0");
    yard.write("job.toml", job);
    yard.run(&["train", "job.toml", "--json"]).refused(&[
        "job.toml:12:1: unknown key `optimizer.rl`: did you mean `optimizer.lr`?",
        "job.toml:13:1: unknown key `optimizer.weight_dacay`: did you mean `optimizer.weight_decay`?",
    ]);
}

#[test]
fn a_value_of_the_wrong_type() {
    let yard = Yard::new();
    let job = yard.text("job.toml").replace("lr = 0.003", "lr = \"fast\"");
    yard.write("job.toml", job);
    yard.run(&["train", "job.toml", "--json"]).refused(&["job.toml:12:6: `optimizer.lr`", "expected a number"]);
    yard.write("job.toml", "model = \"base\"\n[data]\ntrain = 7\n");
    yard.run(&["train", "job.toml"]).refused(&["job.toml:3:9: `data.train`", "a path, a glob or a list of them"]);
}

#[test]
fn a_learning_rate_that_is_no_rate() {
    let yard = Yard::new();
    for rate in ["0", "-1e-5", "nan", "inf"] {
        let set = format!("optimizer.lr={rate}");
        yard.train(&[&set]).refused(&[&format!("--set {set}: `optimizer.lr` must be above 0 and finite")]);
    }
    let job = yard.text("job.toml").replace("lr = 0.003", "lr = 0");
    yard.write("job.toml", job);
    yard.train(&[]).refused(&["job.toml:12:6: `optimizer.lr` must be above 0 and finite, not 0"]);
}

#[test]
fn a_batch_larger_than_the_data() {
    let yard = Yard::new();
    let parts = ["batch.size is 97, but there are only 96 training examples: set it to 96 or less"];
    yard.train(&["batch.size=97"]).refused(&parts);
    yard.train(&["batch.size=96"]).ok();
}

#[test]
fn a_job_that_cannot_be_read() {
    let yard = Yard::new();
    yard.run(&["train", "jobs.toml"]).refused(&["jobs.toml: No such file or directory (os error 2)\n"]);
    yard.write("job.toml", "model = \"base\"\n[data\n");
    yard.run(&["train", "job.toml"]).refused(&["job.toml:2:6: not valid TOML"]);
    yard.write("job.toml", "");
    let parts = ["job.toml: `model` is missing: name a model directory", "job.toml: `data.train` is missing"];
    yard.run(&["train", "job.toml"]).refused(&parts);
}

#[test]
fn keys_that_do_not_go_together() {
    let yard = Yard::new();
    yard.train(&["schedule.steps=5", "schedule.epochs=1"]).refused(&["exclude each other: give one"]);
    yard.train(&["evaluate.metric=mse"]).refused(&["`evaluate.metric` = \"mse\"", "choose one of loss, accuracy"]);
    yard.train(&["loss.class_weights=[1, 2, 3]"])
        .refused(&["loss.class_weights has 3 weights, but there are 2 labels"]);
    yard.train(&["freeze=[\"*\"]"]).refused(&["freeze leaves no parameter to train"]);
    yard.train(&["data.max_tokens=65"]).refused(&["data.max_tokens is 65, but this model takes at most 64 tokens"]);
    let early = ["data.validation=[]", "evaluate.early_stopping_patience=2"];
    yard.train(&early).refused(&["needs validation data: give `data.validation` or `data.validation_split`"]);
    assert!(!yard.path("runs").exists(), "nothing was begun");
}

#[test]
fn an_argument_that_is_wrong() {
    let yard = Yard::new();
    yard.train(&["optimizer.lr"]).refused(&["--set optimizer.lr: there is no `=`", "optimizer.lr=3e-5"]);
    yard.run(&["train"]).refused(&["<JOB>"]);
    yard.run(&["trian", "job.toml"]).refused(&["trian", "train"]);
    yard.run(&["predict", "base", "a train", "--threads", "0"]).refused(&["--threads", "1..=1024"]);
    yard.run(&["eval", "base", "train.tsv", "--format", "xml"]).refused(&["--format", "xml", "jsonl"]);
    let parts = ["data.encoding = \"klingon\"", "utf-8"];
    yard.train(&["data.encoding=klingon"]).refused(&["`data.encoding` = \"klingon\""]);
    let trained = Yard::trained();
    trained.run(&["eval", "runs/job", "train.tsv", "--encoding", "klingon"]).refused(&parts);
}
