//! Full rings, slow disks, and disks that fail: the program goes on, memory stays bounded, and nothing is lost uncounted.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard};

use super::*;
use crate::recorder::handle::Shared;
use crate::recorder::sink::Facts;

/// What a sink that tests look into has seen.
#[derive(Default)]
struct Seen {
    /// Rows of the largest segment.
    largest: AtomicUsize,
    segments: AtomicUsize,
    /// Held by a test while the disk should not answer.
    held: Mutex<()>,
    fails: AtomicBool,
}

impl Seen {
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.held.lock().unwrap()
    }
}

struct Slow {
    disk: Disk,
    seen: Arc<Seen>,
    nap: Duration,
}

impl Sink for Slow {
    fn write(&mut self, batches: Vec<Batch>, facts: Facts) -> Result<(), Error> {
        let rows = batches.iter().map(Batch::len).sum();
        self.seen.largest.fetch_max(rows, Ordering::Relaxed);
        self.seen.segments.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.nap);
        drop(self.seen.hold());
        if self.seen.fails.load(Ordering::Relaxed) {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(Error::Io { path: "segment".into(), source });
        }
        self.disk.write(batches, facts)
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        Box::new(self.disk).finish()
    }
}

fn start(options: Options, nap: Duration) -> (Recorder, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let disk = Disk::new(Writer::create(&options.path, "test").unwrap(), options.segment_rows);
    let sink = Slow { disk, seen: seen.clone(), nap };
    (Recorder::start_with(options, Box::new(sink)).unwrap(), seen)
}

/// Counts of the `dropped_events` diagnostics, and what their examples say.
fn told(profile: &Profile) -> (i64, String) {
    let rows = all(profile, Table::Diagnostics);
    let dropped = texts(&rows, "code").into_iter().enumerate().filter(|(_, code)| *code == Some("dropped_events"));
    dropped.fold((0, String::new()), |(count, words), (row, _)| {
        (count + rows.ints("count")[row], format!("{words}; {}", texts(&rows, "example")[row].unwrap()))
    })
}

#[test]
fn a_full_ring_drops_exactly_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { ring_slots: 64, segment_interval: Duration::ZERO, ..quiet(&dir.path().join("p")) };
    let (recorder, seen) = start(options, Duration::ZERO);
    let name = Name::new("event");
    let lane = recorder.lane("main");
    // The writer's thread hangs in the disk from its first segment on.
    let held = seen.hold();
    lane.instant(name);
    while seen.segments.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    for _ in 0..100 {
        drop(lane.span(name));
    }
    lane.counter(Counter::new("full", "", "1"), 1.0);
    let work = Work { stream: Stream(u32::MAX), name, from: lane.now(), to: lane.now(), correlation: None };
    lane.kernel(work, None, &[1, 2, 3]);
    drop(held);
    let summary = recorder.finish().unwrap();
    // 64 spans fit; 36 spans, the counter and the kernel do not.
    assert_eq!((summary.recorded, summary.dropped), (65, 38));
    let profile = Profile::open(&summary.path).unwrap();
    assert_eq!((all(&profile, Table::Host).len(), all(&profile, Table::Instants).len()), (64, 1));
    assert_eq!(told(&profile), (38, "; 36 spans, 1 counters, 1 kernels".into()));
}

#[test]
fn a_slow_disk_costs_events_and_neither_time_nor_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let options = Options { ring_slots: 1 << 10, segment_rows: 500, ..quiet(&path) };
    let (recorder, seen) = start(options, Duration::from_millis(20));
    let name = Name::new("event");
    const EVENTS: u64 = 200_000;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                recorder.here(|lane| (0..EVENTS / 2).for_each(|_| drop(lane.span(name))));
            });
        }
    });
    let summary = recorder.finish().unwrap();
    assert_eq!(summary.recorded + summary.dropped, EVENTS);
    assert!(summary.dropped > 0 && summary.recorded > 0, "{summary:?}");
    // Rows about the recording itself come on top.
    assert!(seen.largest.load(Ordering::Relaxed) <= 500 + 8, "{:?}", seen.largest);
    let profile = Profile::open(&path).unwrap();
    assert_eq!(all(&profile, Table::Host).len() as u64, summary.recorded);
    assert_eq!(told(&profile).0 as u64, summary.dropped);
}

#[test]
fn a_full_disk_is_told_once_and_the_program_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_interval: Duration::ZERO, ..quiet(&dir.path().join("p")) };
    let (recorder, seen) = start(options, Duration::ZERO);
    let lane = recorder.lane("main");
    lane.instant(Name::new("kept"));
    wait_until(|| seen.segments.load(Ordering::Relaxed) > 0);
    seen.fails.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        lane.instant(Name::new("lost"));
        std::thread::sleep(Duration::from_millis(30));
    }
    let failed = seen.segments.load(Ordering::Relaxed);
    let error = recorder.finish().unwrap_err();
    assert!(matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull), "{error}");
    assert_eq!(seen.segments.load(Ordering::Relaxed), failed, "nothing is written after the failure");
    let profile = Profile::open(&dir.path().join("p")).unwrap();
    assert_eq!(texts(&all(&profile, Table::Instants), "name"), [Some("kept")]);
    assert_eq!(profile.manifest().state, crate::State::Recording);
}

#[test]
fn a_directory_that_is_removed_ends_the_recording_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let recorder = Recorder::start(quiet(&path)).unwrap();
    let lane = recorder.lane("main");
    lane.instant(Name::new("before"));
    std::fs::remove_dir_all(&path).unwrap();
    lane.instant(Name::new("after"));
    let error = recorder.finish().unwrap_err();
    assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
}

#[test]
fn more_open_spans_than_rows_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (profile, summary) = record(quiet(&dir.path().join("p")), |recorder| {
        let lane = recorder.lane("main");
        let spans: Vec<Span> = (0..70).map(|_| lane.span(Name::new("deep"))).collect();
        drop(spans);
        drop(lane.span(Name::new("later")));
    });
    assert_eq!((summary.recorded, summary.dropped), (65, 6));
    let host = all(&profile, Table::Host);
    assert_eq!(host.ints("depth")[..64], (0..64).collect::<Vec<i64>>());
    assert_eq!(host.ints("depth")[64], 0);
}

/// Files of a table's folder.
fn files(path: &Path, table: Table) -> usize {
    std::fs::read_dir(path.join(table.folder())).unwrap().count()
}

#[test]
fn small_segments_become_few_and_nothing_is_lost_on_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let mut disk = Box::new(Disk::new(Writer::create(&path, "test").unwrap(), 1000));
    let facts = Facts { rank: 0, devices: 0, extent: None };
    let mut written = 0;
    for segment in 0..400i64 {
        let mut batch = Batch::new(Table::Instants);
        for at in 0..10i64 {
            let (name, track) = (format!("{written}"), at % 2);
            let ts = segment * 100 - at;
            batch.push(&crate::schema::InstantRow {
                rank: 0,
                track,
                ts,
                name: &name,
                category: None,
                scope: None,
                args: None,
            });
            written += 1;
        }
        disk.write(vec![batch], facts).unwrap();
        // Whoever looks, whenever, finds every row once.
        let profile = Profile::open(&path).unwrap();
        let rows = all(&profile, Table::Instants);
        let mut names: Vec<usize> = texts(&rows, "name").iter().map(|name| name.unwrap().parse().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, (0..written).collect::<Vec<usize>>());
        let segments = profile.manifest().segments(Table::Instants).len();
        assert!(segments <= 4 + 3 * 8, "{segments}");
    }
    disk.finish().unwrap();
    let profile = Profile::open(&path).unwrap();
    let segments = profile.manifest().segments(Table::Instants);
    assert_eq!(segments.iter().map(|segment| segment.rows).collect::<Vec<u64>>(), [1000; 4]);
    assert_eq!(files(&path, Table::Instants), 4, "no file is left over");
    let rows = all(&profile, Table::Instants);
    let keys: Vec<(i64, i64)> = rows.ints("track").iter().copied().zip(rows.ints("ts").iter().copied()).collect();
    assert!(keys.chunks(1000).all(|keys| keys.is_sorted()), "each is sorted by track and time");
}

#[test]
fn a_rank_without_tracks_left_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let shared = Shared::new(&quiet(dir.path()));
    let tracks = std::iter::from_fn(|| shared.track()).count();
    assert_eq!((tracks, shared.without_track.load(Ordering::Relaxed)), (1 << 20, 1));
}

fn wait_until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_millis(1));
    }
}
