//! `trainyard train --profile`: what a run records of itself.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use trace::schema::Table;
use trace::{Batch, Profile, State};

use crate::common::{Yard, train_args};

fn all(profile: &Profile, table: Table) -> Batch {
    let columns: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
    profile.read(table, &columns).unwrap()
}

/// A slice: its name, start, end, and arguments.
struct Slice {
    name: String,
    from: i64,
    to: i64,
    args: Value,
}

fn slices(batch: &Batch) -> Vec<Slice> {
    let (ts, dur, name, args) = (batch.ints("ts"), batch.ints("dur"), batch.texts("name"), batch.texts("args"));
    let slice = |row: usize| Slice {
        name: batch.text(name[row]).into(),
        from: ts[row],
        to: ts[row] + dur[row],
        args: match batch.text(args[row]) {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap(),
        },
    };
    let mut slices: Vec<Slice> = (0..batch.len()).map(slice).collect();
    slices.sort_by_key(|slice| (slice.from, -slice.to));
    slices
}

fn counts(slices: &[Slice]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    slices.iter().for_each(|slice| *counts.entry(&slice.name[..]).or_default() += 1);
    counts
}

fn open(path: &Path) -> Profile {
    let profile = Profile::open(path).unwrap();
    assert_eq!(profile.manifest().state, State::Complete);
    profile
}

#[test]
fn a_window_of_updates_is_recorded_with_phases_and_kernels() {
    let yard = Yard::new();
    let sets = ["batch.size=8", "batch.accumulate=2", "evaluate.every_steps=4", "checkpoint.every_steps=3"];
    let outcome = yard.run(&[&train_args(&sets)[..], &["--profile", "steps=2..5"]].concat()).object();
    assert_eq!(outcome["profile"], "runs/job/profile");
    let profile = open(&yard.path("runs/job/profile"));
    let manifest = profile.manifest();
    assert_eq!((&manifest.name[..], &manifest.ranks[..], manifest.devices), ("job", &[0i64][..], 1));

    let host = all(&profile, Table::Host);
    let marks = slices(&host);
    let expected = BTreeMap::from([
        ("step_2", 1),
        ("step_3", 1),
        ("step_4", 1),
        ("data_loading", 3),
        ("micro_batch", 6),
        ("forward", 6),
        ("backward", 6),
        ("optimizer", 3),
        ("checkpoint", 1),
        ("evaluation", 1),
        ("save_model", 1),
    ]);
    assert_eq!(counts(&marks), expected);
    let named = |name: &str| marks.iter().filter(|slice| slice.name == name).collect::<Vec<_>>();
    let log = yard.log("runs/job");
    for step in 2..5 {
        let slice = named(&format!("step_{step}"))[0];
        let logged = &log.iter().find(|line| line["train"]["step"] == step).unwrap()["train"];
        let values = json!({"examples": logged["samples"], "tokens": logged["tokens"], "micro_batches": 2});
        assert_eq!(slice.args, values);
        let seconds = (slice.to - slice.from) as f64 * 1e-9;
        let told = logged["seconds"].as_f64().unwrap();
        assert!(seconds <= told && seconds > 0.5 * told, "{seconds} of {told}");
        // Each of its parts lies inside it, one after the other.
        let inside: Vec<&Slice> = marks.iter().filter(|part| slice.from < part.from && part.to <= slice.to).collect();
        let order: Vec<&str> = inside.iter().map(|part| &part.name[..]).collect();
        let micro_batch = ["micro_batch", "forward", "backward"];
        assert_eq!(order, [&["data_loading"], &micro_batch[..], &micro_batch, &["optimizer"]].concat());
    }
    assert_eq!(named("evaluation")[0].args, json!({"examples": 48}));
    assert!(named("checkpoint")[0].args["bytes"].as_u64() > Some(10_000), "{}", named("checkpoint")[0].args);

    let device = all(&profile, Table::Device);
    let kernels = slices(&device);
    let dtypes: Vec<&str> = device.texts("dtype").iter().map(|&id| device.text(id)).collect();
    assert!(dtypes.iter().all(|dtype| *dtype == "f32"), "{dtypes:?}");
    let count = counts(&kernels);
    // Two layers, in six micro-batches and in the batches of one evaluation.
    let evaluated = kernels.iter().filter(|kernel| {
        let evaluation = named("evaluation")[0];
        kernel.name == "attention" && evaluation.from <= kernel.from && kernel.to <= evaluation.to
    });
    assert_eq!(count["attention"], 12 + evaluated.count());
    assert_eq!((count["attention_gradient"], count["adamw"], count["sum_of_squares"]), (12, 3, 3));
    assert_eq!(count["embedding_gradient"], 18, "tokens, positions and types");
    let update = kernels.iter().find(|kernel| kernel.name == "adamw").unwrap();
    let parameters: u64 = yard.json("runs/job/run.json")["model"]["parameters"].as_u64().unwrap();
    assert_eq!(update.args["elements"], parameters);
    // The feed-forward layers: from 32 to 64 columns, for every token of the micro-batch.
    let micro_batch = named("micro_batch")[0];
    let wide = kernels
        .iter()
        .find(|kernel| micro_batch.from <= kernel.from && kernel.name == "linear" && kernel.args["out"] == 64);
    assert_eq!(wide.unwrap().args, json!({"rows": micro_batch.args["tokens"], "in": 32, "out": 64}));
    // They are most of the time of an update, on one stream, one after the other.
    assert!(device.ints("depth").iter().all(|&depth| depth == 0));
    assert!(kernels.windows(2).all(|pair| pair[0].to <= pair[1].from));

    let memory = all(&profile, Table::Memory);
    assert_eq!(memory.len(), 3);
    assert!(memory.texts("name").iter().all(|&id| memory.text(id) == "high_water"));
    assert!((0..3).all(|row| memory.ints("bytes")[row] >= memory.ints("allocated")[row]));
    let peak = yard.json("runs/job/run.json")["memory"]["pool"]["peak_bytes"].as_i64().unwrap();
    assert!(memory.ints("bytes").iter().all(|&bytes| bytes <= peak), "{peak}");
    let counters = all(&profile, Table::Counters);
    let pool = counters.texts("name").iter().filter(|&&id| counters.text(id) == "memory_pool").count();
    assert_eq!(pool, 9);
}

#[test]
fn a_whole_run_is_recorded_and_the_weights_are_those_of_a_run_without() {
    let yard = Yard::new();
    yard.train(&["schedule.epochs=2", "out=plain"]).ok();
    let ran = yard.run(&["train", "job.toml", "--set", "schedule.epochs=2", "--profile"]).ok();
    assert!(ran.stdout.contains("\nprofile: runs/job/profile\n"), "{}", ran.stdout);
    let weights = |run: &str| yard.read(&format!("{run}/model/model.safetensors"));
    assert!(weights("plain") == weights("runs/job"));
    let profile = open(&yard.path("runs/job/profile"));
    let host = all(&profile, Table::Host);
    let steps = slices(&host).iter().filter(|slice| slice.name.starts_with("step_")).count();
    assert_eq!(steps, 12);
    assert!(!yard.path("plain/profile").exists());
}

#[test]
fn a_run_that_goes_on_keeps_the_profile_that_is_there() {
    let yard = Yard::new();
    let args = train_args(&["schedule.epochs=2", "checkpoint.every_steps=6"]);
    yard.run(&[&args[..], &["--profile"]].concat()).ok();
    // Update 12 is made again.
    for entry in std::fs::read_dir(yard.path("runs/job/checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("step-00000012") {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    let before = yard.read("runs/job/profile/manifest.json");
    let outcome = yard.run(&[&args[..], &["--resume", "--profile"]].concat()).object();
    assert_eq!(outcome["profile"], "runs/job/profile-2");
    assert!(yard.read("runs/job/profile/manifest.json") == before);
    let host = all(&open(&yard.path("runs/job/profile-2")), Table::Host);
    let steps: Vec<String> = slices(&host).into_iter().map(|slice| slice.name).collect();
    assert!(steps.contains(&"step_7".into()) && !steps.contains(&"step_6".into()), "{steps:?}");
}

#[test]
fn ranges_that_cannot_be_recorded_are_refused() {
    let yard = Yard::new();
    let refused = |range: &str, parts: &[&str]| yard.run(&["train", "job.toml", "--profile", range]).refused(parts);
    refused("steps=121..130", &["--profile steps=121..130", "only 120 updates"]);
    refused("steps=119..122", &["its last range ends at 121"]);
    assert!(!yard.path("runs/job/profile").exists(), "nothing is left");
    for (range, problem) in [("20..40", "such as steps=20..40"), ("steps=0..4", "counted from 1")] {
        let ran = yard.run(&["train", "job.toml", "--profile", range]);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains(problem), "{}", ran.stderr);
    }
}

#[test]
fn a_run_that_ends_before_its_range_leaves_no_profile() {
    let yard = Yard::new();
    let sets = ["schedule.max_minutes=0.0001"];
    let ran = yard.run(&[&train_args(&sets)[..], &["--profile", "steps=110..120"]].concat()).ok();
    assert!(ran.stderr.contains("nothing was recorded"), "{}", ran.stderr);
    assert!(ran.object().get("profile").is_none());
    assert!(!yard.path("runs/job/profile").exists());
}
