//! `trainyard profile` on real traces, driven as a user drives it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The folders of `shared/traces` that hold traces, and whether devices worked there.
const FOLDERS: [(&str, bool); 22] = [
    ("a100-6streams", true),
    ("a100-control", true),
    ("a100-nccl", true),
    ("dlrm-8ranks", true),
    ("edge-cases/amd-mi250", true),
    ("edge-cases/cpu-only", false),
    ("edge-cases/critical-path-alexnet", true),
    ("edge-cases/critical-path-simple-add", true),
    ("edge-cases/critical-path-simple-add-result", true),
    ("edge-cases/cuda-event-sync", true),
    ("edge-cases/cuda-event-sync-multi-stream", true),
    ("edge-cases/cupti-profiler", false),
    ("edge-cases/mtia-inference", true),
    ("edge-cases/triton", true),
    ("h100-stacks", true),
    ("jax-xplane", true),
    ("nsys-h100", true),
    ("rn50-2021", true),
    ("sampled-2ranks", true),
    ("v100-multistep", true),
    ("v100-ns", true),
    ("v100-test", true),
];

/// The traces beside the repository; tests of real traces pass without them.
fn traces() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    folder.is_dir().then_some(folder)
}

/// A folder to work in.
struct Yard(TempDir);

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Yard {
    fn new() -> Self {
        Yard(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, &[])
    }

    fn run_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainyard"));
        command.arg("profile").args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command.env_remove("COLUMNS").envs(variables.iter().copied());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran = Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) };
        assert!(!ran.stderr.contains("panicked"), "{args:?}: {}", ran.stderr);
        ran
    }

    /// Imports a folder of traces.
    fn import(&self, folder: &str, out: &str) -> Value {
        let source = traces().unwrap().join(folder);
        self.run(&["import", source.to_str().unwrap(), "-o", out, "--json"]).object()
    }
}

impl Ran {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    #[track_caller]
    fn object(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// The input is wrong: code 2, nothing on standard output, and a message with all of `parts`.
    #[track_caller]
    fn refused(self, parts: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(2), ""), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{}should contain: {part}", self.stderr);
        }
    }
}

fn int(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is no integer"))
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

#[test]
fn every_folder_of_traces_is_imported_reported_and_drawn() {
    if traces().is_none() {
        return;
    }
    let yard = Yard::new();
    for (folder, works) in FOLDERS {
        let profile = folder.replace('/', "-");
        let imported = yard.import(folder, &profile);
        assert!(int(&imported["bytes"]) > 0 && !list(&imported["sources"]).is_empty(), "{folder}");

        let text = yard.run(&["report", &profile]).ok();
        assert!(text.contains("Findings") && text.contains("Ranks and clocks"), "{folder}: {text}");
        assert!(!text.contains("NaN"), "{folder}: {text}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 160, "{folder}: a line of {widest}");
        let narrow = yard.run_with(&["report", &profile], &[("COLUMNS", "80")]).ok();
        for line in narrow.lines().skip(1).filter(|line| !line.contains("trainyard profile slices")) {
            assert!(line.chars().count() <= 80, "{folder}: {line}");
        }

        let report = yard.run(&["report", &profile, "--json"]).object();
        assert_eq!(list(&report["ranks"]).len(), list(&imported["ranks"]).len(), "{folder}");
        assert!(list(&report["findings"]).len() <= 7, "{folder}");
        for rank in list(&report["analyses"]["ranks"]) {
            let of = |name: &str| int(&rank["temporal"][name]);
            assert_eq!(of("busy_ns") + of("idle_ns"), of("span_ns"), "{folder}");
            assert_eq!(of("compute_ns") + of("non_compute_ns") + of("idle_ns"), of("span_ns"), "{folder}");
            assert_eq!(of("events") > 0, works, "{folder}");
        }

        assert_eq!(yard.run(&["report", &profile, "--html", "page.html", "--overwrite"]).ok().trim(), "page.html");
        let page = fs::read_to_string(yard.path("page.html")).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>"), "{folder}");
        assert!(!page.contains("NaN") && !page.contains("http:") && !page.contains("https:"), "{folder}");

        // A viewport of every track holds what it says.
        for line in list(&yard.run(&["slices", &profile, "--json"]).object()["tracks"]) {
            let track = line["track"].to_string();
            let ran = yard.run(&["slices", &profile, "--track", &track, "--px", "64", "--json"]);
            if ran.code != Some(0) {
                ran.refused(&["has no slices"]);
                continue;
            }
            let view = ran.object();
            for row in list(&view["rows"]) {
                let slices = list(&row["slices"]);
                assert!(slices.len() <= 2 * 66, "{folder}");
                assert_eq!(slices.iter().map(|slice| int(&slice["busy"])).sum::<i64>(), int(&row["busy"]), "{folder}");
            }
        }
    }

    let found = yard.run(&["ls", "--json"]).object();
    assert_eq!(list(&found["profiles"]).len(), FOLDERS.len());
    let table = yard.run(&["ls"]).ok();
    for (folder, _) in FOLDERS {
        assert!(table.contains(&folder.replace('/', "-")), "{table}");
    }
    assert!(table.contains("complete"));
}

#[test]
fn a_window_draws_the_slices_in_it_exactly() {
    if traces().is_none() {
        return;
    }
    let yard = Yard::new();
    yard.import("edge-cases/triton", "p");
    let tracks = yard.run(&["slices", "p", "--json"]).object();
    let stream = list(&tracks["tracks"]).iter().find(|line| line["kind"] == "stream").unwrap()["track"].to_string();
    let all = yard.run(&["slices", "p", "--track", &stream, "--json"]).object();
    let kernel = &all["rows"][0]["slices"][0];
    let (ts, dur) = (int(&kernel["ts"]), int(&kernel["dur"]));
    assert_eq!((int(&all["slices"]), int(&kernel["busy"])), (1, dur));

    // Half of the kernel: it is the same slice, busy for half as long.
    let (from, to) = (ts.to_string(), (ts + dur / 2).to_string());
    let window = ["--from", &from, "--to", &to, "--px", "1000000"];
    yard.run(&[&["slices", "p", "--track", &stream], &window[..]].concat()).refused(&["1000000 pixels"]);
    let half =
        yard.run(&["slices", "p", "--track", &stream, "--from", &from, "--to", &to, "--px", "1", "--json"]).object();
    assert_eq!(
        (&half["rows"][0]["slices"][0]["ts"], &half["rows"][0]["slices"][0]["dur"]),
        (&kernel["ts"], &kernel["dur"])
    );
    assert_eq!(int(&half["rows"][0]["busy"]), (int(&half["to_ns"]).min(ts + dur) - ts).min(dur));
    let text = yard.run(&["slices", "p", "--track", &stream]).ok();
    assert!(text.contains(&ts.to_string()), "{text}");
}

#[test]
fn a_rank_of_several_is_reported_alone() {
    if traces().is_none() {
        return;
    }
    let yard = Yard::new();
    yard.import("dlrm-8ranks", "p");
    let all = yard.run(&["report", "p", "--json"]).object();
    let one = yard.run(&["report", "p", "--rank", "3", "--json"]).object();
    assert_eq!(list(&all["analyses"]["ranks"]).len(), 8);
    assert_eq!(list(&one["analyses"]["ranks"]).len(), 1);
    assert_eq!(one["analyses"]["ranks"][0]["temporal"], all["analyses"]["ranks"][3]["temporal"]);
    let text = yard.run(&["report", "p", "--rank", "all"]).ok();
    assert!(text.contains("Stragglers") && text.contains("rank 7"), "{text}");
    yard.run(&["report", "p", "--rank", "8"]).refused(&["--rank 8", "it has 0, 1, 2"]);
    assert_eq!(yard.run(&["report", "p", "--rank", "many"]).code, Some(2));
}

#[test]
fn options_of_a_report_do_what_they_say() {
    if traces().is_none() {
        return;
    }
    let yard = Yard::new();
    yard.import("v100-ns", "p");
    let few = yard.run(&["report", "p", "--top", "3", "--json"]).object();
    assert_eq!(list(&few["analyses"]["kernels"]["by_time"]).len(), 4);
    let exact = &few["analyses"]["ranks"][0]["temporal"];
    let compat = yard.run(&["report", "p", "--hta-compat", "--json"]).object();
    let compat = &compat["analyses"]["ranks"][0]["temporal"];
    // Known values of both (µs): 7,575 and 12,143.
    let whole_us = |ns: &Value| (int(ns) + 500) / 1000;
    assert_eq!((whole_us(&exact["idle_ns"]), whole_us(&compat["idle_ns"])), (7575, 12143));

    let steps = yard.run(&["report", "p", "--annotation", "ProfilerStep"]).ok();
    assert!(steps.contains("ProfilerStep on the host") && steps.contains('█'), "{steps}");
    yard.run(&["report", "p", "--annotation", "nothing"]).refused(&["nothing", "ProfilerStep"]);
}

#[test]
fn two_profiles_are_compared() {
    if traces().is_none() {
        return;
    }
    let yard = Yard::new();
    yard.import("a100-control", "control");
    yard.import("v100-test", "test");
    let found = yard.run(&["diff", "control", "test", "--json"]).object();
    let of = |name: &str| -> i64 {
        let parts = list(&found["total"]["breakdown"]);
        int(&parts.iter().find(|part| part["name"] == name).unwrap()["diff_ns"])
    };
    assert_eq!(of("busy") + of("idle"), of("span"));
    assert!(of("span") != 0);
    let text = yard.run(&["diff", "control", "test", "--top", "5"]).ok();
    for part in ["control", "Kernels, copies and fills", "Operators", "added", "removed"] {
        assert!(text.contains(part), "{text}should contain: {part}");
    }
    // A profile does not differ from itself.
    let same = yard.run(&["diff", "control", "control", "--json"]).object();
    for part in list(&same["total"]["breakdown"]) {
        assert_eq!(part["diff_ns"], 0);
    }
    assert!(list(&same["total"]["kernels"]["rows"]).iter().all(|row| row["change"] == "same"));
}

#[test]
fn a_profile_is_exported_for_other_tools_and_comes_back() {
    if traces().is_none() {
        return;
    }
    let yard = Yard::new();
    yard.import("edge-cases/critical-path-alexnet", "p");
    for (format, out) in [("perfetto", "t.perfetto"), ("chrome", "t.json.gz"), ("parquet", "parquet"), ("csv", "csv")] {
        let said = yard.run(&["export", "p", "--format", format, "-o", out]).ok();
        assert!(said.contains(out) && yard.path(out).exists(), "{said}");
        yard.run(&["export", "p", "--format", format, "-o", out]).refused(&[out, "exists"]);
        yard.run(&["export", "p", "--format", format, "-o", out, "--overwrite"]).ok();
    }
    yard.run(&["import", "t.json.gz", "-o", "again"]).ok();
    let analyses = |profile: &str| yard.run(&["report", profile, "--json"]).object()["analyses"].take();
    assert!(analyses("p") == analyses("again"), "the same analyses after export and import");
    assert!(yard.path("csv/device.csv").is_file() && yard.path("parquet/device.parquet").is_file());
    assert_eq!(yard.run(&["export", "p", "--format", "pdf", "-o", "x"]).code, Some(2));
}

#[test]
fn what_cannot_be_read_or_written_is_named() {
    let yard = Yard::new();
    for command in
        [&["report", "none"][..], &["slices", "none"], &["diff", "none", "none"], &["import", "none", "-o", "p"]]
    {
        yard.run(command).refused(&["none", "No such file"]);
    }
    yard.run(&["ls", "none"]).refused(&["none"]);
    yard.run(&["export", "none", "--format", "csv", "-o", "x"]).refused(&["none"]);

    fs::create_dir(yard.path("folder")).unwrap();
    fs::write(yard.path("folder/notes.txt"), "no trace").unwrap();
    yard.run(&["report", "folder"]).refused(&["folder", "not a profile"]);
    yard.run(&["report", "folder/notes.txt"]).refused(&["notes.txt", "not a profile"]);
    yard.run(&["import", "folder", "-o", "p"]).refused(&["folder"]);
    yard.run(&["import", "folder/notes.txt", "-o", "p"]).refused(&["notes.txt"]);
    assert!(!yard.path("p").exists(), "a failed import leaves nothing");
    assert_eq!(yard.run(&["ls"]).ok().trim(), "no profiles in .");
    assert_eq!(yard.run(&["ls", "--json"]).object(), json!({"profiles": [], "unreadable": []}));
}

#[test]
fn nothing_is_overwritten_or_left_half_written() {
    let yard = Yard::new();
    let trace =
        json!({"traceEvents": [{"ph": "X", "name": "op", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2}]});
    fs::write(yard.path("t.json"), trace.to_string()).unwrap();
    yard.run(&["import", "t.json", "-o", "p"]).ok();
    yard.run(&["import", "t.json", "-o", "p"]).refused(&["p", "exists already"]);
    yard.run(&["report", "p", "--html", "p.html"]).ok();
    yard.run(&["report", "p", "--html", "p.html"]).refused(&["p.html", "exists already"]);
    yard.run(&["report", "p", "--html", "p.html", "--overwrite"]).ok();
    yard.run(&["report", "p", "--html", "none/p.html"]).refused(&["none/p.html", "no folder none"]);
    yard.run(&["import", "t.json", "-o", "t.json/p"]).refused(&["t.json/p"]);
}

#[test]
fn an_export_never_touches_the_profile() {
    let yard = Yard::new();
    fs::write(yard.path("t.json"), r#"[{"ph": "X", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]"#).unwrap();
    yard.run(&["import", "t.json", "-o", "p"]).ok();
    std::os::unix::fs::symlink("p", yard.path("link")).unwrap();
    let before = fs::read(yard.path("p/manifest.json")).unwrap();
    for (format, out) in [
        ("parquet", "p"),
        ("csv", "p/host"),
        ("csv", "p/new/deeper"),
        ("chrome", "p/manifest.json"),
        ("perfetto", "./p/../p/t"),
        ("perfetto", "link/t"),
    ] {
        let args = ["export", "p", "--format", format, "-o", out, "--overwrite"];
        yard.run(&args).refused(&[out, "in the profile itself"]);
    }
    assert_eq!(fs::read(yard.path("p/manifest.json")).unwrap(), before);
    assert!(!yard.path("p/new").exists() && !yard.path("p/t").exists());
    yard.run(&["export", "p", "--format", "chrome", "-o", "p.json"]).ok();
    yard.run(&["export", "p", "--format", "csv", "-o", "new/csv"]).ok();
}

#[test]
fn a_finding_names_a_command_that_runs() {
    if traces().is_none() {
        return;
    }
    let yard = Yard::new();
    yard.import("a100-control", "it's a profile");
    let text = yard.run(&["report", "it's a profile"]).ok();
    let command = text.lines().map(str::trim).find(|line| line.starts_with("trainyard profile slices")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_trainyard"));
    let ran = Command::new("sh")
        .args(["-c", &format!("{}{}", program.display(), command.strip_prefix("trainyard").unwrap())])
        .current_dir(yard.0.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8(ran.stdout).unwrap().contains("slices in"));
    let page = yard.run(&["report", "it's a profile", "--html", "page.html"]);
    assert!(page.ok().contains("page.html"));
    let page = fs::read_to_string(yard.path("page.html")).unwrap();
    assert!(page.contains("trainyard profile slices &#39;it&#39;\\&#39;&#39;s a profile&#39; --track"));

    // No two kernels of a table read the same.
    let by_time = text.split("Kernels by time").nth(1).unwrap().split("\n\n").next().unwrap();
    let names: Vec<&str> = by_time.lines().skip(2).map(|line| line.trim().split("  ").next().unwrap()).collect();
    let mut different = names.clone();
    different.sort_unstable();
    different.dedup();
    assert!(names.len() == 16 && different.len() == 16, "{by_time}");
}

#[test]
fn ls_tells_a_recording_from_what_a_killed_one_left() {
    let yard = Yard::new();
    fs::write(yard.path("t.json"), r#"[{"ph": "X", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]"#).unwrap();
    yard.run(&["import", "t.json", "-o", "runs/job/profile"]).ok();
    let manifest = yard.path("runs/job/profile/manifest.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let mut state = |state: &str, pid: Option<u32>| {
        value["state"] = state.into();
        value["pid"] = pid.into();
        fs::write(&manifest, value.to_string()).unwrap();
        yard.run(&["ls", "--json"]).object()["profiles"][0]["state"].clone()
    };
    assert_eq!(state("complete", None), "complete");
    assert_eq!(state("recording", Some(std::process::id())), "recording");
    assert_eq!(state("recording", Some(u32::MAX)), "interrupted");
    let text = yard.run(&["report", "runs/job/profile"]).ok();
    assert!(text.contains("interrupted") && text.contains("not whole"), "{text}");

    fs::write(&manifest, r#"{"format": "trainyard profile", "version": 99}"#).unwrap();
    let list = yard.run(&["ls", "--json"]).object();
    assert!(list["unreadable"][0]["path"].as_str().unwrap().ends_with("runs/job/profile"), "{list}");
}
