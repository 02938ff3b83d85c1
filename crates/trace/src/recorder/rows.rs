//! From events to the rows of a segment.

use std::fmt::Write;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::clock::{Source, Timeline};
use super::event::{Head, Kind, MAX_VALUES, NONE, Slot, TEXT_FOLLOWS, text};
use super::handle::TRACK_BITS;
use super::lane::MemoryKind;
use super::names::{Description, Known};
use crate::batch::{Batch, NO_TEXT};
use crate::schema::{CounterRow, DeviceRow, HostRow, InstantRow, MemoryRow, Table};
use crate::texts::Texts;

/// A slice of a thread or a stream; texts are numbers in [`Rows::texts`].
#[derive(Clone, Copy)]
struct Slice {
    kind: Kind,
    track: u32,
    row: u16,
    name: u32,
    args: u32,
    dtype: u32,
    group: u32,
    ts: i64,
    dur: i64,
    correlation: Option<i64>,
    bytes: Option<i64>,
    sequence: Option<i64>,
}

struct Point {
    track: u32,
    ts: i64,
    name: u32,
}

struct Value {
    track: u32,
    ts: i64,
    name: u32,
    series: u32,
    unit: u32,
    value: f64,
}

struct Use {
    track: u32,
    ts: i64,
    kind: u8,
    /// Address, bytes, allocated, reserved, device.
    words: [Option<i64>; 5],
}

/// A stream that the rows speak of.
struct StreamInfo {
    device: u32,
    number: i64,
    /// When each row of the track is free again, ns.
    free: Vec<i64>,
}

/// Rows of the segment to come.
pub(super) struct Rows {
    rank: i64,
    names: Known,
    texts: Texts,
    /// Numbers of names in `texts`, and of what values are written as.
    named: FxHashMap<u32, u32>,
    written: FxHashMap<(u32, u8, [i64; MAX_VALUES]), u32>,
    streams: FxHashMap<u32, StreamInfo>,
    host: Vec<Slice>,
    device: Vec<Slice>,
    points: Vec<Point>,
    values: Vec<Value>,
    uses: Vec<Use>,
    /// Earliest start and latest end of the slices of all segments, ns.
    pub extent: Option<(i64, i64)>,
}

/// A value that the writer's thread counts itself.
pub(super) struct Sample<'a> {
    pub ts: i64,
    pub name: &'a str,
    pub series: &'a str,
    pub unit: &'a str,
    pub value: f64,
}

impl Rows {
    pub fn new(rank: i64) -> Self {
        Self {
            rank,
            names: Known::default(),
            texts: Texts::new(),
            named: FxHashMap::default(),
            written: FxHashMap::default(),
            streams: FxHashMap::default(),
            host: Vec::new(),
            device: Vec::new(),
            points: Vec::new(),
            values: Vec::new(),
            uses: Vec::new(),
            extent: None,
        }
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.host.len() + self.device.len() + self.points.len() + self.values.len() + self.uses.len()
    }

    pub fn add_stream(&mut self, track: u32, device: u32, number: i64) {
        self.streams.insert(track, StreamInfo { device, number, free: Vec::new() });
    }

    pub fn has_stream(&self, track: u32) -> bool {
        self.streams.contains_key(&track)
    }

    /// Adds an event of the lane with this track; `slots[0]` is its first. False when it is none: its stream is unknown.
    pub fn add<S: Source>(&mut self, head: Head, slots: &[Slot], track: u32, line: &mut Timeline<S>) -> bool {
        let [_, first, second, third] = slots[0];
        let more = &slots[1..];
        let ts = line.ns(first);
        match head.kind {
            Kind::Instant => {
                let name = if head.name == TEXT_FOLLOWS {
                    self.texts.intern(&text(more, third as usize))
                } else {
                    self.name(head.name)
                };
                self.points.push(Point { track, ts, name });
            }
            Kind::Counter => {
                let Some(what) = self.names.get(head.name) else { return false };
                let name = self.texts.intern(&what.text);
                let series = self.texts.intern(&what.series);
                let unit = what.unit.as_deref().map_or(NO_TEXT, |unit| self.texts.intern(unit));
                self.values.push(Value { track, ts, name, series, unit, value: f64::from_bits(second) });
            }
            Kind::Memory => {
                let words = [second, third, more[0][0], more[0][1], more[0][2]];
                let mut given = [None; 5];
                for (at, (given, word)) in given.iter_mut().zip(words).enumerate() {
                    *given = (head.values >> at & 1 == 1).then_some(word as i64);
                }
                self.uses.push(Use { track, ts, kind: head.row, words: given });
            }
            Kind::Span | Kind::Annotation | Kind::Wait | Kind::Launch => {
                let dur = line.ns(second).saturating_sub(ts).max(0);
                let (name, texts) = match head.name {
                    TEXT_FOLLOWS => {
                        let length = third as usize;
                        (self.texts.intern(&text(more, length)), length.div_ceil(super::event::SLOT_BYTES))
                    }
                    number if head.kind == Kind::Annotation && third > 0 => (self.numbered(number, third - 1), 0),
                    number => (self.name(number), 0),
                };
                let args = self.args(head, &more.as_flattened()[4 * texts..]);
                let correlation = (head.kind == Kind::Launch).then_some(third as i64);
                let slice = Slice {
                    kind: head.kind,
                    track,
                    row: u16::from(head.row),
                    name,
                    args,
                    dtype: NO_TEXT,
                    group: NO_TEXT,
                    ts,
                    dur,
                    correlation,
                    bytes: None,
                    sequence: None,
                };
                self.host.push(slice);
                self.extend(ts, dur);
            }
            Kind::Kernel | Kind::Copy | Kind::Set | Kind::Collective => {
                let words = more.as_flattened();
                let stream = words[0] as u32;
                if !self.has_stream(stream) {
                    return false;
                }
                let dtype = match (words[0] >> 32) as u32 {
                    NONE => NO_TEXT,
                    number => self.name(number),
                };
                let is_collective = head.kind == Kind::Collective;
                let slice = Slice {
                    kind: head.kind,
                    track: stream,
                    row: 0,
                    name: self.name(head.name),
                    args: if head.kind == Kind::Kernel { self.args(head, &words[1..]) } else { NO_TEXT },
                    dtype,
                    group: if is_collective { self.name(words[2] as u32) } else { NO_TEXT },
                    ts,
                    dur: line.ns(second).saturating_sub(ts).max(0),
                    correlation: (third > 0).then_some(third as i64),
                    bytes: (head.kind != Kind::Kernel).then_some(words[1] as i64),
                    sequence: is_collective.then_some(words[3] as i64),
                };
                self.extend(slice.ts, slice.dur);
                self.device.push(slice);
            }
        }
        true
    }

    /// Adds what the writer's thread counted.
    pub fn sample(&mut self, track: u32, sample: &Sample) {
        let Sample { ts, name, series, unit, value } = *sample;
        let [name, series, unit] = [name, series, unit].map(|text| self.texts.intern(text));
        self.values.push(Value { track, ts, name, series, unit, value });
    }

    fn extend(&mut self, ts: i64, dur: i64) {
        let end = ts.saturating_add(dur);
        let (first, last) = self.extent.unwrap_or((ts, end));
        self.extent = Some((first.min(ts), last.max(end)));
    }

    /// The number in `texts` of a name.
    fn name(&mut self, number: u32) -> u32 {
        if let Some(&known) = self.named.get(&number) {
            return known;
        }
        let text = self.names.get(number).map_or_else(String::new, |name| name.text.clone());
        let id = self.texts.intern(&text);
        self.named.insert(number, id);
        id
    }

    fn numbered(&mut self, name: u32, number: u64) -> u32 {
        let text = self.names.get(name).map_or_else(String::new, |name| format!("{}_{number}", name.text));
        self.texts.intern(&text)
    }

    /// The values of an event as a JSON object in `texts`.
    fn args(&mut self, head: Head, words: &[u64]) -> u32 {
        let count = usize::from(head.values);
        if count == 0 {
            return NO_TEXT;
        }
        let mut values = [0; MAX_VALUES];
        values.iter_mut().zip(&words[..count]).for_each(|(value, &word)| *value = word as i64);
        let key = (head.name, head.values, values);
        if let Some(&id) = self.written.get(&key) {
            return id;
        }
        let what = if head.name == TEXT_FOLLOWS { None } else { self.names.get(head.name) };
        let id = self.texts.intern(&object(what, &values[..count]));
        self.written.insert(key, id);
        id
    }

    /// The rows as batches, sorted by track and time; the next segment begins empty.
    pub fn take(&mut self, batches: &mut Vec<Batch>) {
        self.host.sort_by_key(|slice| (slice.track, slice.ts, -slice.dur));
        self.device.sort_by_key(|slice| (slice.track, slice.ts, -slice.dur));
        self.points.sort_by_key(|point| (point.track, point.ts));
        self.values.sort_by_key(|value| (value.track, value.ts));
        self.uses.sort_by_key(|used| (used.track, used.ts));
        // Rows of a track that overlap move up; in the order of their starts this takes the fewest rows.
        for slice in &mut self.device {
            if let Some(stream) = self.streams.get_mut(&slice.track) {
                slice.row = row_of(&mut stream.free, slice.ts, slice.ts.saturating_add(slice.dur));
            }
        }
        let tables =
            [self.host_rows(), self.device_rows(), self.memory_rows(), self.counter_rows(), self.instant_rows()];
        batches.extend(tables.into_iter().filter(|batch| !batch.is_empty()));
        self.clear();
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.host.clear();
        self.device.clear();
        self.points.clear();
        self.values.clear();
        self.uses.clear();
        self.texts.clear();
        self.named.clear();
        self.written.clear();
    }

    fn track(&self, track: u32) -> i64 {
        (self.rank << TRACK_BITS) + i64::from(track)
    }

    fn text(&self, id: u32) -> Option<&str> {
        (id != NO_TEXT).then(|| self.texts.get(id))
    }

    fn host_rows(&self) -> Batch {
        let mut batch = Batch::new(Table::Host);
        for slice in &self.host {
            batch.push(&HostRow {
                rank: self.rank,
                track: self.track(slice.track),
                ts: slice.ts,
                dur: slice.dur,
                depth: i64::from(slice.row),
                kind: match slice.kind {
                    Kind::Annotation => "annotation",
                    Kind::Wait => "sync",
                    Kind::Launch => "runtime",
                    _ => "span",
                },
                name: self.text(slice.name).unwrap_or_default(),
                correlation: slice.correlation,
                args: self.text(slice.args),
                ..HostRow::default()
            });
        }
        batch
    }

    fn device_rows(&self) -> Batch {
        let mut batch = Batch::new(Table::Device);
        for slice in &self.device {
            let Some(stream) = self.streams.get(&slice.track) else { continue };
            batch.push(&DeviceRow {
                rank: self.rank,
                track: self.track(slice.track),
                device: i64::from(stream.device),
                stream: stream.number,
                ts: slice.ts,
                dur: slice.dur,
                depth: i64::from(slice.row),
                kind: match slice.kind {
                    Kind::Copy => "memcpy",
                    Kind::Set => "memset",
                    Kind::Collective => "collective",
                    _ => "kernel",
                },
                name: self.text(slice.name).unwrap_or_default(),
                correlation: slice.correlation,
                bytes: slice.bytes,
                group: self.text(slice.group),
                sequence: slice.sequence,
                dtype: self.text(slice.dtype),
                args: self.text(slice.args),
                ..DeviceRow::default()
            });
        }
        batch
    }

    fn memory_rows(&self) -> Batch {
        let mut batch = Batch::new(Table::Memory);
        for used in &self.uses {
            let [address, bytes, allocated, reserved, device] = used.words;
            batch.push(&MemoryRow {
                rank: self.rank,
                track: self.track(used.track),
                ts: used.ts,
                name: MemoryKind::word(used.kind),
                address,
                bytes,
                allocated,
                reserved,
                device,
                ..MemoryRow::default()
            });
        }
        batch
    }

    fn counter_rows(&self) -> Batch {
        let mut batch = Batch::new(Table::Counters);
        for value in &self.values {
            batch.push(&CounterRow {
                rank: self.rank,
                track: self.track(value.track),
                ts: value.ts,
                name: self.text(value.name).unwrap_or_default(),
                series: self.text(value.series).unwrap_or_default(),
                value: value.value,
                unit: self.text(value.unit),
            });
        }
        batch
    }

    fn instant_rows(&self) -> Batch {
        let mut batch = Batch::new(Table::Instants);
        for point in &self.points {
            batch.push(&InstantRow {
                rank: self.rank,
                track: self.track(point.track),
                ts: point.ts,
                name: self.text(point.name).unwrap_or_default(),
                category: None,
                scope: Some("thread"),
                args: None,
            });
        }
        batch
    }
}

/// The lowest row that is free at `ts`, which is taken until `end`. A slice that is written late finds a row free only after
/// all of that row's slices, so rows never overlap.
fn row_of(free: &mut Vec<i64>, ts: i64, end: i64) -> u16 {
    // What overlaps this deep is no stream any more; the last row takes the rest.
    const ROWS: usize = 1 << 12;
    let row = free.iter().position(|&free| free <= ts).unwrap_or(free.len()).min(ROWS);
    if row == free.len() {
        free.push(end);
    }
    free[row] = free[row].max(end);
    row as u16
}

/// `{"rows":8,"in":3}`: values with the names that `what` has for them, or their places.
fn object(what: Option<Arc<Description>>, values: &[i64]) -> String {
    let mut text = String::from("{");
    for (at, value) in values.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let name = what.as_ref().and_then(|what| what.values.get(at));
        let key = match name {
            Some(name) => serde_json::to_string(name).unwrap_or_else(|_| format!("\"{at}\"")),
            None => format!("\"{at}\""),
        };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{key}:{value}");
    }
    text.push('}');
    text
}
