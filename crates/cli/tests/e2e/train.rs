//! `trainyard train`: what a run learns and leaves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{BAD, COLOURS, Dice, GOOD, Tensors, Yard, sentiments, tsv};

#[test]
fn a_run_leaves_a_model_a_log_and_an_account_of_itself() {
    let yard = Yard::new();
    let ran = yard.run(&["train", "job.toml"]).ok();
    assert!(ran.stdout.contains("model: runs/job/model") && ran.stdout.contains("macro_recall"), "{}", ran.stdout);
    for file in ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"] {
        assert!(yard.path("runs/job/model").join(file).is_file(), "{file}");
    }
    assert_eq!(yard.json("runs/job/model/config.json")["id2label"], json!({"0": "down", "1": "up"}));

    let log = yard.log("runs/job");
    let updates: Vec<u64> = log.iter().filter_map(|line| line["train"]["step"].as_u64()).collect();
    assert_eq!(updates, (1..=120).collect::<Vec<u64>>());
    let evaluated: Vec<u64> =
        log.iter().filter(|line| line.get("validation").is_some()).filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(evaluated, [30, 60, 90, 120]);

    let run = yard.json("runs/job/run.json");
    assert_eq!(
        run["job"]["optimizer"],
        json!({"lr": 0.003, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "clip_norm": 1.0})
    );
    assert_eq!((&run["job"]["out"], &run["job"]["batch"]["accumulate"]), (&json!("runs/job"), &json!(1)));
    assert_eq!((&run["seed"], &run["device"]["threads"]), (&json!(42), &json!(1)));
    assert!(run["versions"]["trainyard"].is_string() && run["device"]["cpu"].is_string());
    assert!(run["timings"]["training_seconds"].as_f64() > Some(0.0));
    assert_eq!((&run["data"]["train"]["examples"], &run["outcome"]["steps"]), (&json!(96), &json!(120)));
}

#[test]
fn json_is_one_object_on_standard_output_and_progress_goes_to_standard_error() {
    let yard = Yard::new();
    let ran = yard.train(&[]);
    assert!(ran.stderr.contains("96 training examples, 48 held out; at most 120 updates"), "{}", ran.stderr);
    assert!(ran.stderr.contains("newly initialised, not in the model file: "), "{}", ran.stderr);
    assert!(ran.stderr.contains("after update 120: macro_f1 1.0000  loss "), "{}", ran.stderr);
    let outcome = ran.object();
    let keys: BTreeSet<&str> = outcome.as_object().unwrap().keys().map(String::as_str).collect();
    let promised = "run_dir model_dir steps train_loss samples_per_s tokens_per_s peak_rss_bytes eval";
    assert_eq!(keys, promised.split(' ').collect());
    assert_eq!((&outcome["run_dir"], &outcome["model_dir"]), (&json!("runs/job"), &json!("runs/job/model")));
    for key in ["steps", "train_loss", "samples_per_s", "tokens_per_s", "peak_rss_bytes"] {
        assert!(outcome[key].as_f64() > Some(0.0), "{key}: {}", outcome[key]);
    }
}

#[test]
fn it_learns_one_label_for_each_text() {
    let outcome = Yard::new().train(&[]).object();
    assert!(outcome["eval"]["accuracy"].as_f64() >= Some(0.95), "{outcome}");
}

#[test]
fn it_learns_any_number_of_labels() {
    let yard = Yard::new();
    let mut dice = Dice(3);
    let mut lines = String::new();
    for _ in 0..160 {
        let present: Vec<&str> = COLOURS.into_iter().filter(|_| dice.roll(2) == 1).collect();
        lines += &format!("{}\n", json!({"text": dice.sentence(&present), "label": present}));
    }
    yard.write("colours.jsonl", lines);
    let sets = ["task=multi-label", "data.train=colours.jsonl", "data.validation=[]", "data.validation_split=0.25"];
    let outcome = yard.train(&[&sets[..], &["schedule.epochs=30"]].concat()).object();
    assert!(outcome["eval"]["accuracy"].as_f64() >= Some(0.95), "{outcome}");
}

#[test]
fn it_learns_numbers() {
    let yard = Yard::new();
    let mut dice = Dice(4);
    let mut rows = |count| -> Vec<(String, String)> {
        let row = |_| {
            let strength = dice.roll(4);
            (dice.sentence(&vec!["very"; strength]), format!("{:.1}", strength as f64 / 2.0 - 1.0))
        };
        (0..count).map(row).collect()
    };
    yard.write("train.tsv", tsv(&rows(160)));
    yard.write("validation.tsv", tsv(&rows(48)));
    let outcome = yard.train(&["task=regression", "schedule.epochs=12", "optimizer.lr=0.005"]).object();
    assert!(outcome["eval"]["mse"].as_f64() < Some(0.05), "{outcome}");
    assert!(outcome["eval"]["spearman"].as_f64() > Some(0.9), "{outcome}");
}

#[test]
fn it_learns_a_label_for_each_word() {
    let yard = Yard::new();
    let mut dice = Dice(5);
    for (name, sentences) in [("train.conll", 96), ("validation.conll", 32)] {
        let mut lines = String::new();
        for _ in 0..sentences {
            let colours = vec![dice.pick(&COLOURS); dice.roll(3)];
            for word in dice.sentence(&colours).split(' ') {
                lines += &format!("{word} {}\n", if COLOURS.contains(&word) { "B-COLOUR" } else { "O" });
            }
            lines += "\n";
        }
        yard.write(name, lines);
    }
    let sets = ["task=token-classification", "data.train=train.conll", "data.validation=validation.conll"];
    let outcome = yard.train(&sets).object();
    assert!(outcome["eval"]["accuracy"].as_f64() >= Some(0.95), "{outcome}");
    assert!(outcome["eval"]["entities"]["f1"].as_f64() >= Some(0.95), "{outcome}");
}

#[test]
fn set_and_out_override_the_job_file() {
    let yard = Yard::new();
    let args =
        ["train", "job.toml", "--json", "--set", "optimizer.lr=1e-4", "--set=schedule.epochs=1", "--out", "else/where"];
    let outcome = yard.run(&args).object();
    assert_eq!((&outcome["run_dir"], &outcome["steps"]), (&json!("else/where"), &json!(6)));
    let job = &yard.json("else/where/run.json")["job"];
    assert_eq!((&job["optimizer"]["lr"], &job["schedule"]["epochs"]), (&json!(1e-4), &json!(1.0)));
    assert!(!yard.path("runs").exists());
}

#[test]
fn two_accumulated_batches_are_one_of_twice_the_size() {
    let yard = Yard::new();
    // Sentences are of unequal length, dropout is on, and 90 is no multiple of 16. AdamW turns the rounding of a gradient
    // that is zero but for it into whole steps, unless epsilon is larger.
    let common =
        ["optimizer.eps=0.001", "data.limit=90", "schedule.epochs=2", "dropout.hidden=0.2", "dropout.attention=0.2"];
    let run = |sets: &[&str]| {
        let outcome = yard.train(&[&common[..], sets].concat()).object();
        (outcome["steps"].clone(), yard.tensors(&format!("{}/model", outcome["run_dir"].as_str().unwrap())))
    };
    let (steps, whole) = run(&["batch.size=16", "out=whole"]);
    let (steps_of_halves, halves) = run(&["batch.size=8", "batch.accumulate=2", "out=halves"]);
    assert_eq!(steps, steps_of_halves);
    assert!(largest_difference(&whole, &halves) < 1e-5, "{}", largest_difference(&whole, &halves));
}

fn largest_difference(a: &Tensors, b: &Tensors) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b).flat_map(|((_, _, a), (_, _, b))| a.iter().zip(b));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn frozen_parameters_keep_their_bits() {
    let yard = Yard::new();
    let frozen = r#"freeze=["embeddings.*", "encoder.layer.0.*"]"#;
    yard.train(&[frozen, "schedule.epochs=1"]).ok();
    let before = yard.tensors("base");
    let after = yard.tensors("runs/job/model");
    for (name, _, values) in before {
        let (_, _, now) = after.iter().find(|(other, ..)| other.ends_with(&name)).unwrap();
        let is_frozen = name.starts_with("embeddings.") || name.starts_with("encoder.layer.0.");
        assert_eq!(values == *now, is_frozen, "{name}");
    }
}

#[test]
fn a_freeze_pattern_that_matches_nothing_is_pointed_out() {
    let ran = Yard::new().train(&[r#"freeze=["encoder.layers.0.*"]"#, "schedule.epochs=0.1"]).ok();
    assert!(ran.stderr.contains("freeze: `encoder.layers.0.*` matches no parameter"), "{}", ran.stderr);
}

/// A job whose validation labels are all wrong: the better it learns, the worse it looks.
fn contrary() -> (Yard, Vec<&'static str>) {
    let yard = Yard::new();
    let swapped: Vec<(String, String)> = sentiments(48, 2)
        .into_iter()
        .map(|(text, label)| (text, if label == "up" { "down".into() } else { "up".into() }))
        .collect();
    yard.write("validation.tsv", tsv(&swapped));
    (yard, vec!["evaluate.every_steps=4", "evaluate.metric=loss", "schedule.warmup_steps=0"])
}

#[test]
fn the_model_left_is_the_best_by_the_metric() {
    let (yard, sets) = contrary();
    let outcome = yard.train(&sets).object();
    let losses = |line: &Value| Some((line["validation"]["loss"].as_f64()?, line["step"].as_u64()?));
    let log = yard.log("runs/job");
    let (best, step) = log.iter().filter_map(losses).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    assert!(step < 60, "the best of the test is not the last, but that of update {step}");
    assert_eq!(outcome["steps"], 120);
    let measured = yard.run(&["eval", "runs/job", "validation.tsv", "--json"]).object();
    assert!((measured["loss"].as_f64().unwrap() - best).abs() < 1e-6, "{} and {best}", measured["loss"]);
    assert!((outcome["eval"]["loss"].as_f64().unwrap() - best).abs() < 1e-6);
}

#[test]
fn training_stops_when_patience_is_at_its_end_and_resuming_does_not_go_past_it() {
    let (yard, mut sets) = contrary();
    sets.push("evaluate.early_stopping_patience=2");
    let ran = yard.train(&sets).ok();
    assert!(ran.stderr.contains("stopping early: loss was no better in 2 evaluations in a row"), "{}", ran.stderr);
    let outcome = ran.object();
    assert!(outcome["steps"].as_u64() < Some(120), "{outcome}");
    let log = yard.log("runs/job");
    let again = yard.run(&[&crate::common::train_args(&sets)[..], &["--resume"]].concat()).object();
    assert_eq!((&again["steps"], &again["eval"]), (&outcome["steps"], &outcome["eval"]));
    assert_eq!(yard.log("runs/job"), log);
}

#[test]
fn test_data_are_evaluated_with_the_best_model() {
    let (yard, mut sets) = contrary();
    yard.write("test.tsv", tsv(&sentiments(30, 9)));
    sets.push("data.test=test.tsv");
    let outcome = yard.train(&sets).object();
    let measured = yard.run(&["eval", "runs/job", "test.tsv", "--json"]).object();
    assert_eq!(outcome["eval"], measured);
    assert_eq!(measured["examples"], 30);
}

#[test]
fn class_weights_shift_the_answer() {
    let yard = Yard::new();
    // The texts say nothing of the labels, of which `rare` is one in eight.
    let mut dice = Dice(6);
    let rows: Vec<(String, String)> =
        (0..96).map(|i| (dice.sentence(&[]), if i % 8 == 0 { "rare" } else { "usual" }.into())).collect();
    yard.write("train.tsv", tsv(&rows));
    let answers = |weights: &str, out: &str| {
        let sets = [weights, out, "data.validation=[]", "schedule.epochs=2", "optimizer.lr=0.001"];
        yard.train(&sets).ok();
        let model = out.split_once('=').unwrap().1;
        yard.run(&["eval", model, "train.tsv", "--json"]).object()["per_label"].clone()
    };
    let recall = |table: Value, label: usize| table[label]["recall"].as_f64().unwrap();
    assert!(recall(answers("loss.class_weights=equal", "out=equal"), 1) > 0.9);
    assert!(recall(answers("loss.class_weights=[50, 1]", "out=list"), 0) > 0.9);
    // One of eight weighs 4, the others 4/7: neither label is favoured.
    let table = answers("loss.class_weights=balanced", "out=balanced");
    assert!(recall(table, 0) > 0.1);
}

#[test]
fn a_time_limit_ends_the_run_with_the_rate_at_zero() {
    let yard = Yard::new();
    let begun = Instant::now();
    let outcome =
        yard.train(&["schedule.epochs=100000", "schedule.max_minutes=0.01", "evaluate.every_epochs=99999"]).object();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(outcome["steps"].as_u64() > Some(1));
    let log = yard.log("runs/job");
    let rates: Vec<f64> = log.iter().filter_map(|line| line["train"]["lr"].as_f64()).collect();
    assert!(rates.last() < rates.get(rates.len() / 2) && *rates.last().unwrap() < 0.001, "{rates:?}");
    assert_eq!(outcome["eval"]["examples"], 48);
}

#[test]
fn bfloat16_learns_too_and_keeps_less() {
    let yard = Yard::new();
    let saved = |sets: &[&str]| {
        let outcome = yard.train(sets).object();
        assert!(outcome["eval"]["accuracy"].as_f64() >= Some(0.95), "{outcome}");
        let run = yard.json(&format!("{}/run.json", outcome["run_dir"].as_str().unwrap()));
        run["memory"]["saved_activation_bytes"].as_f64().unwrap()
    };
    let (half, full) = (saved(&["precision=bf16", "out=half"]), saved(&["out=full"]));
    assert!(half < 0.75 * full, "{half} of {full} bytes");
}

#[test]
fn a_pair_of_texts_is_trained_on_as_one_sequence() {
    let yard = Yard::new();
    let mut dice = Dice(8);
    let mut lines = "first,second,label\n".to_string();
    for i in 0..64 {
        let words = if i % 2 == 0 { GOOD } else { BAD };
        let word = dice.pick(&words);
        lines += &format!("{},\"{}\",{}\n", dice.sentence(&[]), dice.sentence(&[word]), i % 2);
    }
    yard.write("pairs.csv", lines);
    let sets = ["data.train=pairs.csv", "data.validation=pairs.csv", "data.text=first", "data.text_pair=second"];
    let ran = yard.train(&[&sets[..], &["schedule.epochs=30"]].concat()).ok();
    assert!(ran.stderr.contains("64 validation texts are also training texts"), "{}", ran.stderr);
    let outcome = ran.object();
    assert!(outcome["eval"]["accuracy"].as_f64() >= Some(0.95), "{outcome}");
}

#[test]
fn training_starts_from_a_trained_model_in_a_tarball_and_keeps_its_head() {
    let yard = Yard::trained();
    yard.run(&["package", "runs/job", "-o", "model.tar.gz"]).ok();
    let ran = yard.train(&["model=model.tar.gz", "out=further", "schedule.steps=1"]).ok();
    assert!(!ran.stderr.contains("newly initialised"), "{}", ran.stderr);
    let outcome = ran.object();
    assert!(outcome["eval"]["accuracy"].as_f64() >= Some(0.95), "{outcome}");
}
