//! A killed program leaves a profile without its last segment.

use std::process::{Command, Stdio};

use super::*;

const DIR: &str = "TRACE_TEST_KILLED_PROFILE";

/// The program that is killed; as a test of its own it does nothing.
#[test]
fn child() {
    let Some(path) = std::env::var_os(DIR) else { return };
    let options = Options { segment_interval: Duration::from_millis(50), ..quiet(Path::new(&path)) };
    let recorder = Recorder::start(options).unwrap();
    let lane = recorder.lane("main");
    let device = recorder.device(0, "cpu", None);
    let stream = recorder.stream(device, 0, "compute");
    let name = Name::new("step");
    for number in 0.. {
        let from = lane.now();
        {
            let _step = lane.step(name, number);
            std::thread::sleep(Duration::from_micros(200));
        }
        lane.kernel(Work { stream, name, from, to: lane.now(), correlation: None }, None, &[]);
    }
}

#[test]
fn a_killed_program_leaves_all_but_its_last_segment() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recorder::tests::kill::child", "--nocapture"])
        .env(DIR, &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let segments = || {
        let profile = Profile::open(&path);
        profile.map_or(0, |profile| profile.manifest().segments(Table::Host).len())
    };
    while segments() < 4 {
        assert!(child.try_wait().unwrap().is_none(), "the program ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();

    let profile = Profile::open(&path).unwrap();
    let manifest = profile.manifest();
    assert_eq!((manifest.state, manifest.pid), (crate::State::Recording, Some(child.id())));
    assert_eq!((&manifest.ranks[..], manifest.devices), (&[0i64][..], 1));
    let (host, device) = (all(&profile, Table::Host), all(&profile, Table::Device));
    // Steps from the first to the last published, without a gap.
    let names: Vec<String> = (0..host.len()).map(|number| format!("step_{number}")).collect();
    assert_eq!(texts(&host, "name"), names.iter().map(|name| Some(&name[..])).collect::<Vec<_>>());
    assert!(host.len().abs_diff(device.len()) <= 1);
    let last = host.len() - 1;
    let end = (host.ints("ts")[last] + host.ints("dur")[last])
        .max(device.ints("ts")[device.len() - 1] + device.ints("dur")[device.len() - 1]);
    assert_eq!(manifest.last_ns, Some(end));
    assert_eq!(all(&profile, Table::Tracks).len(), 2);
    assert_eq!(all(&profile, Table::Ranks).len(), 1);
}
