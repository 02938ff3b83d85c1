//! The thread that empties the rings and writes segments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rtrb::Consumer;

use super::clock::{Machine, Timeline, monotonic_ns, slope_of, wall_offset_ns};
use super::event::{Head, Kind, Slot};
use super::handle::{News, Shared, TRACK_BITS};
use super::hardware::Hardware;
use super::host::HostCounters;
use super::lane::Dropped;
use super::rows::Rows;
use super::sink::{Facts, Sink};
use super::{Options, Summary};
use crate::batch::Batch;
use crate::schema::{DevicePropertiesRow, DiagnosticRow, RankRow, Table, TrackRow};
use crate::store::Error;

/// The thread looks at the rings at least and at most this often.
const LONGEST_NAP: Duration = Duration::from_millis(20);
const SHORTEST_NAP: Duration = Duration::from_millis(1);
/// Slots that are taken from a ring at once.
const CHUNK: usize = 4096;
/// A long recording's segments are this part of it.
const SHARE: u32 = 100;

/// Events by kind.
type Counts = [u64; Kind::ALL.len()];

struct LaneReader {
    track: u32,
    ring: Consumer<Slot>,
    dropped: Arc<Dropped>,
}

struct Recording<'a> {
    options: &'a Options,
    shared: &'a Shared,
    sink: Option<Box<dyn Sink>>,
    line: Timeline<Machine>,
    rows: Rows,
    lanes: Vec<LaneReader>,
    /// What was taken from a ring last.
    buffer: Vec<Slot>,
    devices: BTreeMap<u32, (String, Option<i64>)>,
    /// Rows about the recording itself that wait for the next segment.
    tracks: Batch,
    properties: Batch,
    diagnostics: Batch,
    host: Option<HostCounters>,
    host_track: Option<u32>,
    wall_offset_ns: i64,
    /// Whether the rank has been named.
    introduced: bool,
    /// What lanes that are gone have dropped, and what has no place in the profile.
    lost: Counts,
    /// Dropped events that a segment tells of.
    told: Counts,
    pending: Counts,
    recorded: u64,
    failure: Option<Error>,
}

/// Records until told to stop, or until the disk says no.
pub(super) fn run(options: &Options, shared: &Shared, sink: Box<dyn Sink>) -> Result<Summary, Error> {
    let mut recording = Recording::new(options, shared, sink);
    let begun = Instant::now();
    let (mut written, mut sampled) = (begun, begun);
    let mut nap = LONGEST_NAP;
    loop {
        let stopping = shared.stop.load(Ordering::Acquire);
        let fullest = recording.drain();
        recording.line.check();
        if options.host_counters.is_some_and(|every| sampled.elapsed() >= every || stopping) {
            sampled = Instant::now();
            recording.sample();
        }
        let interval = options.segment_interval.max(begun.elapsed() / SHARE);
        if stopping || written.elapsed() >= interval {
            recording.write();
            written = Instant::now();
        }
        if stopping {
            return recording.finish();
        }
        // Rings that fill faster are emptied more often.
        nap = if fullest > 0.25 { nap / 2 } else { nap * 2 }.clamp(SHORTEST_NAP, LONGEST_NAP);
        thread::park_timeout(nap);
    }
}

impl<'a> Recording<'a> {
    fn new(options: &'a Options, shared: &'a Shared, sink: Box<dyn Sink>) -> Self {
        let line = Timeline::new(Machine(shared.clock().clone()), slope_of(shared.clock()));
        let mut recording = Self {
            options,
            shared,
            sink: Some(sink),
            line,
            rows: Rows::new(options.rank),
            lanes: Vec::new(),
            buffer: Vec::new(),
            devices: BTreeMap::new(),
            tracks: Batch::new(Table::Tracks),
            properties: Batch::new(Table::Devices),
            diagnostics: Batch::new(Table::Diagnostics),
            host: None,
            host_track: None,
            wall_offset_ns: wall_offset_ns(),
            introduced: false,
            lost: Counts::default(),
            told: Counts::default(),
            pending: Counts::default(),
            recorded: 0,
            failure: None,
        };
        recording.open_host_counters();
        recording
    }

    fn open_host_counters(&mut self) {
        if self.options.host_counters.is_none() {
            return;
        }
        let Some(track) = self.shared.track() else { return };
        let hardware = if self.options.hardware_counters {
            let (hardware, absent) = Hardware::open();
            self.tell_absent("hardware_counters_absent", "counters of the processor are not in the profile", &absent);
            hardware
        } else {
            None
        };
        let host = HostCounters::new(monotonic_ns(), hardware);
        self.tell_absent("host_counters_absent", "counters of the host are not in the profile", &host.absent);
        self.host = Some(host);
        self.host_track = Some(track);
        self.track_row(track, "counter", "", None, "host counters");
    }

    fn tell_absent(&mut self, code: &str, meaning: &str, absent: &BTreeMap<&'static str, String>) {
        let Some((name, why)) = absent.first_key_value() else { return };
        let example = format!("{name}: {why}");
        self.diagnostic(code, absent.len() as u64, meaning, &example);
    }

    fn diagnostic(&mut self, code: &str, count: u64, meaning: &str, example: &str) {
        self.diagnostics.push(&DiagnosticRow {
            rank: Some(self.options.rank),
            source: "",
            code,
            count: count as i64,
            meaning,
            example: Some(example),
            example_at: None,
        });
    }

    fn track_row(&mut self, track: u32, kind: &str, thread: &str, stream: Option<(u32, i64)>, name: &str) {
        let process = std::process::id().to_string();
        self.tracks.push(&TrackRow {
            rank: self.options.rank,
            track: (self.options.rank << TRACK_BITS) + i64::from(track),
            kind,
            process: &process,
            thread,
            device: stream.map(|(device, _)| i64::from(device)),
            stream: stream.map(|(_, number)| number),
            process_name: Some(&self.options.name),
            thread_name: Some(name),
            label: None,
            process_order: None,
            thread_order: Some(i64::from(track)),
        });
    }

    /// Learns of new lanes, streams and devices.
    fn hear(&mut self) {
        for news in self.shared.take_news() {
            match news {
                News::Lane { track, thread, name, ring, dropped } => {
                    self.track_row(track, "thread", &thread.to_string(), None, &name);
                    self.lanes.push(LaneReader { track, ring, dropped });
                }
                News::Stream { track, device, number, name } => {
                    self.track_row(track, "stream", &number.to_string(), Some((device, number)), &name);
                    self.rows.add_stream(track, device, number);
                    self.devices.entry(device).or_default();
                }
                News::Device { number, name, memory_bytes } => {
                    self.properties.push(&DevicePropertiesRow {
                        rank: self.options.rank,
                        device: i64::from(number),
                        name: &name,
                        memory_bytes,
                        multiprocessors: None,
                        properties: None,
                    });
                    self.devices.insert(number, (name, memory_bytes));
                }
            }
        }
    }

    /// Takes all events that are there; returns how full the fullest ring was, from 0 to 1.
    fn drain(&mut self) -> f64 {
        self.hear();
        let mut fullest: f64 = 0.0;
        let mut at = 0;
        while at < self.lanes.len() {
            // Whatever its thread pushed before it ended is there once the ring is seen to be abandoned.
            let ended = self.lanes[at].ring.is_abandoned();
            let filled = self.drain_lane(at);
            fullest = fullest.max(filled);
            if ended {
                let lane = self.lanes.swap_remove(at);
                for (lost, &kind) in self.lost.iter_mut().zip(Kind::ALL) {
                    *lost += lane.dropped.of(kind);
                }
            } else {
                at += 1;
            }
        }
        fullest
    }

    fn drain_lane(&mut self, at: usize) -> f64 {
        // What comes while the ring is emptied waits for the next time: no thread can keep the others waiting.
        let available = self.lanes[at].ring.slots();
        let filled = available as f64 / self.lanes[at].ring.buffer().capacity() as f64;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(CHUNK, [0; 4]);
        let (mut left, mut kept) = (available, 0);
        while left > 0 || kept > 0 {
            let take = left.min(CHUNK - kept);
            let lane = &mut self.lanes[at];
            let (taken, _) = lane.ring.pop_partial_slice(&mut buffer[kept..kept + take]);
            let (taken, track) = (taken.len(), lane.track);
            left -= take;
            let filled = kept + taken;
            let mut from = 0;
            while from < filled {
                let Some(head) = Head::of(buffer[from][0]) else {
                    unreachable!("a ring holds whole events, and each begins with a head")
                };
                let to = from + 1 + usize::from(head.more);
                if to > filled {
                    break;
                }
                self.event(head, &buffer[from..to], track);
                from = to;
            }
            buffer.copy_within(from..filled, 0);
            kept = filled - from;
            // An event is pushed whole, so only the end of a full buffer cuts one.
            if take == 0 && from == 0 {
                break;
            }
        }
        self.buffer = buffer;
        filled
    }

    fn event(&mut self, head: Head, slots: &[Slot], track: u32) {
        let kind = head.kind as usize;
        if self.failure.is_some() {
            self.lost[kind] += 1;
            return;
        }
        let mut added = self.rows.add(head, slots, track, &mut self.line);
        if !added {
            // Its stream was made since the news was heard.
            self.hear();
            added = self.rows.add(head, slots, track, &mut self.line);
        }
        if !added {
            self.lost[kind] += 1;
            return;
        }
        self.pending[kind] += 1;
        if self.rows.len() >= self.options.segment_rows.max(1) {
            self.write();
        }
    }

    fn sample(&mut self) {
        let (Some(host), Some(track)) = (&mut self.host, self.host_track) else { return };
        if self.failure.is_none() {
            let rows = &mut self.rows;
            host.sample(monotonic_ns(), &mut |sample| rows.sample(track, sample));
        }
    }

    fn dropped(&self) -> Counts {
        let mut all = self.lost;
        for lane in &self.lanes {
            for (all, &kind) in all.iter_mut().zip(Kind::ALL) {
                *all += lane.dropped.of(kind);
            }
        }
        all
    }

    /// Adds a diagnostic of what was dropped since the last one.
    fn tell_dropped(&mut self) {
        let dropped = self.dropped();
        let new: Vec<(Kind, u64)> = Kind::ALL
            .iter()
            .map(|&kind| (kind, dropped[kind as usize] - self.told[kind as usize]))
            .filter(|(_, count)| *count > 0)
            .collect();
        if new.is_empty() {
            return;
        }
        self.told = dropped;
        let total = new.iter().map(|(_, count)| count).sum();
        let words: Vec<String> = new.iter().map(|(kind, count)| format!("{count} {}", kind.word())).collect();
        let meaning = "events were not recorded: they came faster than they could be written";
        self.diagnostic("dropped_events", total, meaning, &words.join(", "));
    }

    fn rank_row(&self) -> Batch {
        let mut batch = Batch::new(Table::Ranks);
        batch.push(&RankRow {
            rank: self.options.rank,
            source: "",
            rank_from: "recorder",
            world_size: Some(self.options.world_size),
            host: host_name().as_deref(),
            base_ns: 0,
            offset_ns: 0,
            residual_ns: None,
            matched_collectives: 0,
            matched_by: None,
            wall_offset_ns: Some(self.wall_offset_ns),
            resolution_ns: 1,
            first_ns: self.rows.extent.map(|(first, _)| first),
            last_ns: self.rows.extent.map(|(_, last)| last),
        });
        batch
    }

    /// Writes a segment of what there is. After a failure nothing is written any more, and what comes is counted as dropped.
    fn write(&mut self) {
        if self.failure.is_some() {
            return;
        }
        self.tell_dropped();
        let mut batches = Vec::new();
        if !self.introduced {
            batches.push(self.rank_row());
        }
        for batch in [&mut self.tracks, &mut self.properties, &mut self.diagnostics] {
            if !batch.is_empty() {
                batches.push(batch.clone());
                batch.clear();
            }
        }
        self.rows.take(&mut batches);
        if batches.is_empty() {
            return;
        }
        self.send(batches);
        self.introduced = true;
    }

    fn send(&mut self, batches: Vec<Batch>) {
        let Some(sink) = &mut self.sink else { return };
        let devices = self.devices.len() as u64;
        let facts = Facts { rank: self.options.rank, devices, extent: self.rows.extent };
        let pending = std::mem::take(&mut self.pending);
        match sink.write(batches, facts) {
            Ok(()) => self.recorded += pending.iter().sum::<u64>(),
            Err(error) => {
                self.failure = Some(error);
                self.sink = None;
                self.rows.clear();
                for (lost, pending) in self.lost.iter_mut().zip(pending) {
                    *lost += pending;
                }
            }
        }
    }

    fn finish(mut self) -> Result<Summary, Error> {
        let without_track = self.shared.without_track.load(Ordering::Relaxed);
        if without_track > 0 {
            let meaning = "threads or streams were not recorded: the rank has as many tracks as it can have";
            self.diagnostic("no_track_left", without_track, meaning, "");
            self.write();
        }
        if self.failure.is_none() {
            // The rank again, now that its extent is known: the last word counts.
            let rank = self.rank_row();
            self.send(vec![rank]);
        }
        if let Some(sink) = self.sink.take()
            && let Err(error) = sink.finish()
        {
            self.failure = Some(error);
        }
        let dropped = self.dropped().iter().sum();
        match self.failure {
            None => Ok(Summary { path: self.options.path.clone(), recorded: self.recorded, dropped }),
            Some(error) => Err(error),
        }
    }
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}
