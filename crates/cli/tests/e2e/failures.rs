//! Runs that fail: what they say, and what they leave.

use crate::common::{BINARY, Yard, train_args};
use crate::resume::interrupted;

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_the_last_good_checkpoint_stays() {
    let yard = Yard::new();
    // The first update of a warm-up is at rate 0, the second breaks the model.
    let sets = ["optimizer.lr=1e30", "schedule.warmup_steps=5", "checkpoint.every_steps=1", "evaluate.every_epochs=6"];
    let ran = yard.train(&sets);
    let checkpoints = |yard: &Yard| {
        let entries = std::fs::read_dir(yard.path("runs/job/checkpoints")).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let last = checkpoints(&yard).pop().unwrap();
    let values = yard.tensors(&format!("runs/job/checkpoints/{last}"));
    assert!(values.iter().all(|(_, _, values)| values.iter().all(|x| x.is_finite())));
    assert_eq!(yard.log("runs/job").len(), 2);
    let note = format!("the last good checkpoint is `runs/job/checkpoints/{last}`");
    ran.failed(&["the loss of step 3 is not finite: first at ", "lower optimizer.lr", &note]);
}

#[test]
fn a_starting_weight_that_is_no_number_is_named() {
    let yard = Yard::new();
    let mut tensors = yard.tensors("base");
    let bias = tensors.iter_mut().find(|(name, ..)| name == "encoder.layer.1.output.dense.bias").unwrap();
    bias.2[0] = f32::NAN;
    yard.write_tensors("base", &tensors);
    yard.train(&[]).failed(&[
        "the loss of step 1 is not finite: first at parameter `layers.1.",
        "the model's weights file is damaged, get it again",
        "no checkpoint was written yet",
    ]);
}

#[test]
fn weights_that_overflow_in_the_last_update_are_not_saved() {
    let yard = Yard::new();
    let sets = ["optimizer.lr=1e39", "schedule.steps=1", "schedule.warmup_steps=0"];
    yard.train(&sets)
        .failed(&["the result of step 1 is not finite: first at parameter `", "no checkpoint was written yet"]);
    assert!(!yard.path("runs/job/model/model.safetensors").exists());
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_checkpoint_and_the_run_goes_on_from_it() {
    let yard = Yard::new();
    yard.train(&["out=alone", "schedule.epochs=6"]).ok();
    let alone = yard.read("alone/model/model.safetensors");

    let (yard, resume) = interrupted();
    // No file may grow beyond 20 blocks, which is less than the weights take; the signal for that is ignored.
    let command = format!("trap '' XFSZ; ulimit -f 20; exec {BINARY} {}", resume.join(" "));
    let ran = yard.shell(&command);
    let whole = ran.stderr.split("; `").nth(1).and_then(|rest| rest.split('`').next()).unwrap().to_string();
    ran.failed(&["cannot write `runs/job/", "model.safetensors`", "put the cause right and continue with --resume"]);
    assert!(yard.path(&whole).join("state.json").is_file(), "{whole}");
    assert!(yard.shell("find runs -name '*.tmp'").ok().stdout.is_empty(), "no half files");

    yard.run(&resume).ok();
    assert!(yard.read("runs/job/model/model.safetensors") == alone);
}

#[cfg(unix)]
#[test]
fn a_run_directory_that_cannot_be_made_is_named() {
    let yard = Yard::new();
    yard.write("runs", "a file stands in the way");
    yard.run(&train_args(&[])).failed(&["cannot create `runs/job`"]);
}
