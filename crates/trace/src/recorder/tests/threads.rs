//! Many threads at once.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

#[test]
fn every_thread_has_a_track_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    const THREADS: usize = 8;
    const EVENTS: usize = 5000;
    let (profile, summary) = record(quiet(&dir.path().join("p")), |recorder| {
        let device = recorder.device(0, "cpu", None);
        let stream = recorder.stream(device, 0, "shared");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let work = move || {
                    let name = Name::new(&format!("work {thread}"));
                    for _ in 0..EVENTS {
                        recorder.here(|lane| {
                            let (span, correlation) = lane.launch(name);
                            let from = lane.now();
                            drop(span);
                            lane.kernel(Work { stream, name, from, to: lane.now(), correlation }, None, &[]);
                        });
                    }
                };
                std::thread::Builder::new().name(format!("worker {thread}")).spawn_scoped(scope, work).unwrap();
            }
        });
    });
    assert_eq!((summary.recorded, summary.dropped), ((2 * THREADS * EVENTS) as u64, 0));

    let tracks = all(&profile, Table::Tracks);
    let numbers: BTreeSet<i64> = tracks.ints("track").iter().copied().collect();
    assert_eq!(numbers.len(), THREADS + 1, "one for each thread, one for the stream");
    let names: BTreeMap<i64, &str> =
        tracks.ints("track").iter().copied().zip(texts(&tracks, "thread_name").into_iter().flatten()).collect();
    let threads: BTreeSet<&str> = texts(&tracks, "thread").into_iter().flatten().collect();
    assert_eq!(threads.len(), THREADS + 1, "{threads:?}");

    let host = all(&profile, Table::Host);
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    let found = texts(&host, "name");
    // Segments come in the order of time, and each is sorted by track: on a track, time rises.
    for (row, found) in found.into_iter().enumerate() {
        let (track, ts) = (host.ints("track")[row], host.ints("ts")[row]);
        assert_eq!(names[&track].replace("worker", "work"), found.unwrap());
        assert!(last.insert(track, ts).is_none_or(|before| before <= ts));
        *counts.entry(track).or_default() += 1;
    }
    assert_eq!(counts.values().copied().collect::<Vec<_>>(), [EVENTS; THREADS]);

    let device = all(&profile, Table::Device);
    let of = |batch: &Batch| batch.ints("correlation").iter().copied().collect::<BTreeSet<i64>>();
    assert_eq!(of(&device).len(), THREADS * EVENTS, "correlations are unique");
    assert_eq!(of(&device), of(&host));
    super::nesting::check_rows(&device);
}

#[test]
fn threads_that_come_and_go_leave_their_events() {
    let dir = tempfile::tempdir().unwrap();
    let (profile, summary) = record(quiet(&dir.path().join("p")), |recorder| {
        for number in 0..200 {
            let handle = recorder.handle();
            std::thread::spawn(move || handle.here(|lane| drop(lane.step(Name::new("short"), number)))).join().unwrap();
        }
    });
    assert_eq!((summary.recorded, summary.dropped), (200, 0));
    assert_eq!(all(&profile, Table::Tracks).len(), 200);
}

#[test]
fn two_recordings_at_once_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| Recorder::start(quiet(&dir.path().join(name))).unwrap());
    a.here(|lane| {
        let _outer = lane.span(Name::new("a"));
        b.here(|lane| drop(lane.span(Name::new("b"))));
    });
    for (recorder, name) in [(a, "a"), (b, "b")] {
        let summary = recorder.finish().unwrap();
        let profile = Profile::open(&summary.path).unwrap();
        assert_eq!(texts(&all(&profile, Table::Host), "name"), [Some(name)]);
    }
}
