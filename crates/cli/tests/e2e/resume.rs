//! Runs that are cut off and go on.

use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Dice, Ran, Yard, sentiments, train_args, tsv};

const PATIENCE: Duration = Duration::from_secs(60);

fn start(yard: &Yard, args: &[&str]) -> Child {
    yard.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn logged_updates(log: &Path) -> usize {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(r#"{"train""#)).count()
}

/// Waits until the run has logged `updates`; false if it ended before.
fn wait_for(child: &mut Child, log: &Path, updates: usize) -> bool {
    let begun = Instant::now();
    while logged_updates(log) < updates {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(begun.elapsed() < PATIENCE, "the run does not get to update {updates}");
        sleep(Duration::from_micros(300));
    }
    true
}

/// A log without what depends on the clock.
fn timeless(mut log: Vec<Value>) -> Vec<Value> {
    for line in &mut log {
        if let Some(update) = line.get_mut("train") {
            update.as_object_mut().unwrap().remove("seconds");
        }
    }
    log
}

/// Kills a run again and again at random updates, and compares what comes of it with one left alone.
fn killed_and_left_alone(seed: u64, sets: &[&str]) {
    let yard = Yard::new();
    let mut dice = Dice(seed);
    let sets = [sets, &["schedule.epochs=6"]].concat();
    let alone = [&sets[..], &["out=alone"]].concat();
    yard.train(&alone).ok();

    let killed = [&sets[..], &["out=killed"]].concat();
    let log = yard.path("killed/metrics.jsonl");
    let mut kills = 0;
    for _ in 0..4 {
        let updates = logged_updates(&log) + 1 + dice.roll(6);
        let mut args = train_args(&killed);
        if has_checkpoint(&yard.path("killed")) {
            args.push("--resume");
        }
        let mut child = start(&yard, &args);
        let reached = wait_for(&mut child, &log, updates);
        sleep(Duration::from_micros(dice.roll(8000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += usize::from(reached);
    }
    assert!(kills > 0, "the run was over before it was killed");
    let ran = yard.run(&[&train_args(&killed)[..], &["--resume"]].concat()).ok();
    assert!(ran.stderr.contains("going on after update "), "{}", ran.stderr);

    assert!(
        yard.read("alone/model/model.safetensors") == yard.read("killed/model/model.safetensors"),
        "weights differ"
    );
    assert_eq!(timeless(yard.log("alone")), timeless(yard.log("killed")));
    let eval = |run: &str| yard.json(&format!("{run}/run.json"))["outcome"]["eval"].clone();
    assert_eq!(eval("alone"), eval("killed"));
}

fn has_checkpoint(run: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else { return false };
    entries.flatten().any(|entry| entry.path().join("state.json").is_file())
}

#[test]
fn a_run_killed_at_any_update_ends_in_the_same_bits() {
    killed_and_left_alone(1, &["checkpoint.every_steps=1", "evaluate.every_steps=5", "seed=1"]);
}

#[test]
fn so_does_one_that_accumulates_batches_and_saves_every_second_update() {
    let sets = ["checkpoint.every_steps=2", "batch.size=4", "batch.accumulate=3", "dropout.hidden=0.3", "seed=2"];
    killed_and_left_alone(2, &sets);
}

#[test]
fn so_does_one_in_bfloat16_by_token_budget_on_two_threads_with_frozen_layers() {
    let sets = ["checkpoint.every_steps=3", "precision=bf16", "threads=2", r#"freeze=["embeddings.*"]"#, "seed=3"];
    killed_and_left_alone(3, &[&sets[..], &["batch.tokens=150", "evaluate.metric=loss"]].concat());
}

#[test]
fn so_does_one_without_validation_data_and_in_the_order_of_the_file() {
    let sets = ["checkpoint.every_steps=1", "checkpoint.keep=1", "data.validation=[]", "batch.shuffle=false", "seed=4"];
    killed_and_left_alone(4, &sets);
}

fn interrupt(signal: &str) {
    let yard = Yard::new();
    let sets = ["schedule.epochs=40", "evaluate.every_epochs=5"];
    yard.train(&[&sets[..], &["out=alone"]].concat()).ok();

    let sets = [&sets[..], &["out=a yard's run"]].concat();
    let mut child = start(&yard, &train_args(&sets));
    assert!(wait_for(&mut child, &yard.path("a yard's run/metrics.jsonl"), 3));
    yard.shell(&format!("kill -{signal} {}", child.id())).ok();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stdout.contains(r#""interrupted":"a yard's run/checkpoints/step-"#), "{}", ran.stdout);

    // The message says where it saved and how to go on: the very command works.
    let message = ran.stderr.lines().find(|line| line.starts_with("interrupted")).unwrap();
    let (saved, command) = message.split_once("; continue with: ").unwrap();
    let saved = saved.strip_prefix("interrupted; saved `").unwrap().trim_end_matches('`');
    assert!(yard.path(saved).join("state.json").is_file());
    yard.shell(command).ok();
    assert!(yard.read("alone/model/model.safetensors") == yard.read("a yard's run/model/model.safetensors"));
    assert_eq!(timeless(yard.log("alone")), timeless(yard.log("a yard's run")));
}

#[test]
fn ctrl_c_saves_and_tells_how_to_go_on() {
    interrupt("INT");
}

#[test]
fn so_does_sigterm() {
    interrupt("TERM");
}

#[test]
fn resuming_a_finished_run_changes_nothing() {
    let yard = Yard::new();
    let args = train_args(&["evaluate.every_steps=5"]);
    let outcome = yard.run(&args).object();
    let (weights, log) = (yard.read("runs/job/model/model.safetensors"), yard.log("runs/job"));
    let again = yard.run(&[&args[..], &["--resume"]].concat()).object();
    assert_eq!((&again["steps"], &again["eval"]), (&outcome["steps"], &outcome["eval"]));
    assert!(yard.read("runs/job/model/model.safetensors") == weights);
    assert_eq!(yard.log("runs/job"), log);
}

/// A run that was killed soon after update 3 of 36, and the arguments to go on with it.
pub fn interrupted() -> (Yard, Vec<&'static str>) {
    let yard = Yard::new();
    let args = train_args(&["checkpoint.every_steps=1", "schedule.epochs=6"]);
    let mut child = start(&yard, &args);
    assert!(wait_for(&mut child, &yard.path("runs/job/metrics.jsonl"), 3));
    child.kill().unwrap();
    child.wait().unwrap();
    (yard, [&args[..], &["--resume"]].concat())
}

#[test]
fn a_changed_job_does_not_resume() {
    let (yard, resume) = interrupted();
    let changed = ["--set", "optimizer.lr=0.001", "--set", "batch.size=8"];
    yard.run(&[&resume[..], &changed].concat()).refused(&[
        "cannot resume",
        "`optimizer.lr` was 0.003 and is now 0.001",
        "`batch.size` was 16 and is now 8",
        "start a new run with --out",
    ]);
    // Where it runs, and how often it saves, may change.
    yard.run(&[&resume[..], &["--threads", "2", "--set", "checkpoint.every_steps=20"]].concat()).ok();
}

#[test]
fn changed_data_do_not_resume() {
    let (yard, resume) = interrupted();
    let rows = sentiments(96, 1);
    yard.write("train.tsv", tsv(&rows[..95]));
    yard.run(&resume).refused(&["cannot resume: the training data had 96 examples and now have 95"]);

    let mut swapped = rows.clone();
    swapped.swap(0, 1);
    yard.write("train.tsv", tsv(&swapped));
    yard.run(&resume).refused(&["the training data still have 96 examples, but not the same ones"]);

    let renamed: Vec<_> = rows.iter().map(|(text, label)| (text.clone(), format!("{label}ward"))).collect();
    yard.write("train.tsv", tsv(&renamed));
    yard.write("validation.tsv", tsv(&renamed[..48]));
    yard.run(&resume).refused(&["the validation data", "the labels were down, up and are now downward, upward"]);
}

#[test]
fn a_changed_model_does_not_resume() {
    let (yard, resume) = interrupted();
    let mut tensors = yard.tensors("base");
    tensors[0].2[0] += 1.0;
    yard.write_tensors("base", &tensors);
    yard.run(&resume).refused(&["cannot resume: the model that training started from has changed"]);
}

#[test]
fn a_model_that_only_moved_does_resume() {
    let (yard, resume) = interrupted();
    std::fs::rename(yard.path("base"), yard.path("moved")).unwrap();
    yard.run(&[&resume[..], &["--set", "model=moved"]].concat()).ok();
}

#[test]
fn there_must_be_something_to_resume() {
    let yard = Yard::new();
    yard.run(&["train", "job.toml", "--resume"]).refused(&["`runs/job` holds no whole checkpoint", "without --resume"]);
}

#[test]
fn a_run_is_not_trained_over() {
    let yard = Yard::trained();
    let weights = yard.read("runs/job/model/model.safetensors");
    yard.run(&["train", "job.toml"]).refused(&["`runs/job` holds a run already", "--resume", "--out"]);
    std::fs::remove_dir_all(yard.path("runs/job/checkpoints")).unwrap();
    yard.run(&["train", "job.toml"]).refused(&["no checkpoint to resume; delete it", "--out"]);
    assert!(yard.read("runs/job/model/model.safetensors") == weights);
}

#[test]
fn what_a_run_left_that_saved_nothing_does_not_stand_in_the_way() {
    let yard = Yard::new();
    yard.train(&["optimizer.lr=1e30", "schedule.warmup_steps=0"]).failed(&["no checkpoint was written yet"]);
    yard.train(&["schedule.epochs=1"]).ok();
    assert_eq!(yard.log("runs/job").len(), 7, "the log starts anew");
}

#[test]
fn a_checkpoint_that_was_not_finished_is_ignored() {
    let (yard, resume) = interrupted();
    let half = "runs/job/checkpoints/step-00000035";
    yard.write(&format!("{half}/model.safetensors"), "cut off");
    yard.run(&resume).ok();
    assert_eq!(yard.json("runs/job/run.json")["outcome"]["steps"], 36);
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_serves() {
    let (yard, resume) = interrupted();
    let newest = || {
        let entries = std::fs::read_dir(yard.path("runs/job/checkpoints")).unwrap().flatten();
        let whole = entries.map(|entry| entry.path()).filter(|path| path.join("state.json").is_file());
        whole.max().unwrap().strip_prefix(yard.path("")).unwrap().to_str().unwrap().to_string()
    };
    for (file, problem) in [("optimizer/model.safetensors", "truncated"), ("state.json", "EOF while parsing")] {
        let dir = newest();
        let bytes = yard.read(&format!("{dir}/{file}"));
        yard.write(&format!("{dir}/{file}"), &bytes[..bytes.len() / 2]);
        yard.run(&resume).refused(&["cannot resume: ", file, problem, &format!("delete `{dir}`")]);
        if file != "state.json" {
            std::fs::remove_dir_all(yard.path(&dir)).unwrap();
        }
    }
    std::fs::remove_dir_all(yard.path(&newest())).unwrap();
    yard.run(&resume).refused(&["holds no whole checkpoint"]);
}

#[test]
fn old_checkpoints_go_and_the_newest_stay() {
    let yard = Yard::new();
    yard.train(&["checkpoint.every_steps=5", "checkpoint.keep=3"]).ok();
    let entries = std::fs::read_dir(yard.path("runs/job/checkpoints")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["step-00000110", "step-00000115", "step-00000120"]);
}

#[test]
fn a_seed_gives_the_same_bits_on_any_number_of_threads() {
    let yard = Yard::new();
    let weights = |sets: &[&str]| {
        let outcome = yard.train(&[sets, &["schedule.epochs=2"]].concat()).object();
        yard.read(&format!("{}/model.safetensors", outcome["model_dir"].as_str().unwrap()))
    };
    let one = weights(&["out=one"]);
    assert!(one == weights(&["out=again"]), "the same run twice");
    assert!(one == weights(&["out=two", "threads=2"]), "on one thread and on two");
    assert!(one == weights(&["out=three", "threads=3"]), "on one thread and on three");
    assert!(one != weights(&["out=other", "seed=43"]), "another seed");
}
