//! Kineto's and other Chrome traces: one pass, one thread that reads and cuts, two that parse.

mod category;
mod event;
mod points;
mod rest;
mod rows;
mod salvage;
mod split;
mod time;

use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use rows::Rows;
use split::{Piece, Splitter};
use time::MAX_TIME;

use super::diagnostics::{Anomaly, Diagnostics};
use super::gather::{Gather, Shared};
use super::secrets::redact;
use super::source::Source;
use super::{DeviceFacts, Error, PartFacts, SourceFacts};

/// Bytes of source that are cut and parsed at a time.
const CHUNK: usize = 4 << 20;
/// Threads that parse.
const WORKERS: usize = 2;
/// XLA's writer stops silently here.
const XLA_LIMIT: u64 = 1_000_000;
/// Keys beside the events that are kept.
const MAX_ENTRIES: usize = 4096;
/// Bytes of all values beside the events that are kept.
const MAX_ENTRY_BYTES: usize = 8 << 20;

/// Events cut out of a part of the source.
struct Chunk {
    bytes: Vec<u8>,
    events: Vec<Range<usize>>,
    /// Where `bytes` begins in the uncompressed source.
    at: u64,
}

/// What a worker saw.
#[derive(Default)]
struct Seen {
    events: u64,
    fine: bool,
}

/// What the reading thread found besides events.
#[derive(Default)]
struct Head {
    entries: Vec<(String, String)>,
    entry_bytes: usize,
    pieces: u64,
    bytes: u64,
    diagnostics: Diagnostics,
}

/// Reads a trace into `shared` as this source. `None`: it is JSON, but no trace.
pub(super) fn read(path: &Path, shared: &Shared, source: u32) -> Result<Option<SourceFacts>, Error> {
    let (send, receive) = sync_channel::<Chunk>(1);
    let (recycle, recycled) = sync_channel::<Vec<u8>>(WORKERS + 2);
    let (head, workers) = thread::scope(|scope| {
        // The workers alone hold the receiver: when the last has failed, sending fails instead of waiting forever.
        let receive = Arc::new(Mutex::new(receive));
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (receive, recycle) = (receive.clone(), recycle.clone());
                scope.spawn(move || parse(&receive, &recycle, shared, source))
            })
            .collect();
        drop(receive);
        let head = cut(path, send, &recycled);
        let workers: Vec<_> =
            workers.into_iter().map(|worker| worker.join().expect("a parser does not panic")).collect();
        (head, workers)
    });
    let mut seen = Seen::default();
    for worker in workers {
        let worker = worker?;
        seen.events += worker.events;
        seen.fine |= worker.fine;
    }
    let Some(mut head) = head? else { return Ok(None) };
    if seen.events == 0 && (head.pieces > 0 || head.diagnostics.of(Anomaly::UnreadableEvent) > 0) {
        return Ok(None);
    }
    if seen.events == 0 {
        head.diagnostics.add(Anomaly::EmptyTrace, 1, None);
    }
    if head.pieces == XLA_LIMIT {
        head.diagnostics.add(Anomaly::MillionEvents, 1, None);
    }
    let mut gather = Gather::new(shared, source);
    let mut facts = facts(head.entries, seen, &mut head.diagnostics);
    facts.bytes = head.bytes;
    gather.diagnostics = head.diagnostics;
    gather.finish()?;
    Ok(Some(facts))
}

/// Reads the source, cuts it into events and sends them on. `None`: no trace.
fn cut(path: &Path, send: SyncSender<Chunk>, recycled: &Receiver<Vec<u8>>) -> Result<Option<Head>, Error> {
    let mut source = Source::open(path)?;
    let mut splitter = Splitter::new();
    let mut head = Head::default();
    let mut buffer: Vec<u8> = Vec::with_capacity(CHUNK);
    let mut at = 0u64;
    let mut any = false;
    loop {
        let target = (buffer.len() + CHUNK / 2).max(CHUNK);
        let (more, trouble) = match source.fill(&mut buffer, target) {
            Ok(more) => (more, None),
            Err(error) if Source::is_bomb(&error) => return Err(Error::format(path, error)),
            // A damaged or cut stream: what came before it counts.
            Err(error) => (false, Some(error)),
        };
        let mut events = Vec::new();
        loop {
            let piece = match splitter.next(&buffer) {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(split::NoTrace) if any => {
                    let silence = split::MAX_SILENCE >> 20;
                    return Err(Error::format(path, format!("{silence} MiB without an event, up to byte {at}")));
                }
                Err(split::NoTrace) => return Ok(None),
            };
            any = true;
            match piece {
                Piece::Event { start, end } => {
                    head.pieces += 1;
                    events.push(start..end);
                }
                Piece::Oversized { start, end } => {
                    let example = || String::from_utf8_lossy(&buffer[start..end.min(start + 400)]).into_owned();
                    head.diagnostics.count(Anomaly::OversizedEvent, example, at + start as u64);
                    // Its neighbours may be inside: it swallowed them if a quote is missing.
                    events.push(start..end);
                }
                Piece::Skipped { start, end } => {
                    let example = || String::from_utf8_lossy(&buffer[start..end.min(start + 400)]).into_owned();
                    head.diagnostics.count(Anomaly::IgnoredField, example, at + start as u64);
                }
                Piece::Garbage { start, .. } => {
                    let shown = &buffer[start..buffer.len().min(start + 400)];
                    let example = || String::from_utf8_lossy(shown).into_owned();
                    head.diagnostics.count(Anomaly::UnreadableEvent, example, at + start as u64);
                }
                Piece::Entry { key, value } => head.entry(&buffer[key.0..key.1], &buffer[value.0..value.1], at),
            }
        }
        if let Some(error) = trouble {
            if !any {
                return Err(Error::format(path, format!("cannot be decompressed: {error}")));
            }
            let read = at + buffer.len() as u64;
            head.diagnostics.count(Anomaly::Truncated, || format!("the stream is damaged or cut: {error}"), read);
        } else if !more && !splitter.is_closed() {
            let mut cut_off = Some("the closing brackets are missing".to_owned());
            if let Some(start) = splitter.open_event() {
                let (whole, rest) = swallowed(&buffer[start..]);
                cut_off = rest;
                if whole > 0 {
                    events.push(start..start + whole);
                }
            }
            if let Some(example) = cut_off {
                head.diagnostics.count(Anomaly::Truncated, || example, at + buffer.len() as u64);
            }
        }
        let kept = splitter.kept_from().min(buffer.len());
        let mut next = recycled.try_recv().unwrap_or_default();
        next.clear();
        next.extend_from_slice(&buffer[kept..]);
        splitter.dropped(kept);
        let chunk = Chunk { bytes: std::mem::replace(&mut buffer, next), events, at };
        head.bytes = at + chunk.bytes.len() as u64;
        at += kept as u64;
        // A worker that failed has hung up; its error is the one to report.
        if (!chunk.events.is_empty() && send.send(chunk).is_err()) || !more {
            break;
        }
    }
    Ok(splitter.has_events().then_some(head))
}

/// How much of an event that is open at the end of the file are whole events: one whose quotes do not match swallows what
/// follows. And what is cut off, if anything is.
fn swallowed(open: &[u8]) -> (usize, Option<String>) {
    let text = String::from_utf8_lossy(open);
    let pieces = salvage::borders(&text);
    let last = pieces.last().copied().unwrap_or_default();
    let mut values = serde_json::Deserializer::from_str(last).into_iter::<serde::de::IgnoredAny>();
    if pieces.len() > 1 && matches!(values.next(), Some(Ok(_))) {
        return (open.len(), None);
    }
    // Replaced bytes would move the border.
    let whole = if text.len() == open.len() { text.len() - last.len() } else { 0 };
    (whole, Some(last.to_owned()))
}

impl Head {
    fn entry(&mut self, key: &[u8], value: &[u8], at: u64) {
        let (key, value) =
            (String::from_utf8_lossy(key).into_owned(), String::from_utf8_lossy(value).trim().to_owned());
        self.entry_bytes += key.len() + value.len();
        let fits = self.entries.len() < MAX_ENTRIES && self.entry_bytes <= MAX_ENTRY_BYTES;
        if fits && serde_json::from_str::<&serde_json::value::RawValue>(&value).is_ok() {
            self.entries.push((key, value));
        } else {
            self.diagnostics.count(Anomaly::IgnoredField, || format!("{key}: {value}"), at);
        }
    }
}

/// Parses chunks until there are no more.
fn parse(
    receive: &Mutex<Receiver<Chunk>>,
    recycle: &SyncSender<Vec<u8>>,
    shared: &Shared,
    source: u32,
) -> Result<Seen, Error> {
    let mut gather = Gather::new(shared, source);
    let mut rows = Rows::new(&mut gather);
    loop {
        let chunk = receive.lock().expect("no panic while it is held").recv();
        let Ok(chunk) = chunk else { break };
        rows.gather.set_order(chunk.at);
        match std::str::from_utf8(&chunk.bytes) {
            Ok(text) => {
                for event in &chunk.events {
                    rows.text(&text[event.clone()], chunk.at + event.start as u64)?;
                }
            }
            // The chunk may begin or end within a character, or hold no text at all.
            Err(_) => {
                for event in &chunk.events {
                    rows.bytes(&chunk.bytes[event.clone()], chunk.at + event.start as u64)?;
                }
            }
        }
        // Rows of different chunks are not mixed in a run, so that runs keep the order of the source.
        rows.gather.spill()?;
        // No room: the buffer is freed instead.
        let _ = recycle.try_send(chunk.bytes);
    }
    let seen = Seen { events: rows.events, fine: rows.fine };
    gather.finish()?;
    Ok(seen)
}

/// What the keys beside `traceEvents` say.
fn facts(entries: Vec<(String, String)>, seen: Seen, diagnostics: &mut Diagnostics) -> SourceFacts {
    let mut facts =
        SourceFacts { resolution_ns: if seen.fine { 1 } else { 1000 }, events: seen.events, ..SourceFacts::default() };
    let mut part = PartFacts::default();
    for (key, mut text) in entries {
        // By its name a single value can be a secret, too.
        let mut value =
            serde_json::json!({ &*key: serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default() });
        let secrets = redact(&mut value);
        let value = value[&*key].take();
        if secrets > 0 {
            text = value.to_string();
            diagnostics.add(Anomaly::SecretsSkipped, secrets, Some(format!("in {key}")));
        }
        let mut ignored = || diagnostics.count(Anomaly::IgnoredField, || format!("{key}: {text}"), None);
        match key.as_str() {
            "baseTimeNanoseconds" => match integer(&value) {
                Some(base) if base.unsigned_abs() < MAX_TIME => {
                    facts.base_ns = base;
                    facts.wall_offset_ns = Some(0);
                }
                _ => ignored(),
            },
            "distributedInfo" => {
                part.rank = integer(&value["rank"]).filter(|rank| *rank >= 0).map(|rank| (rank, "distributedInfo"));
                part.world_size = integer(&value["world_size"]);
                if part.rank.is_none() {
                    ignored();
                }
            }
            "deviceProperties" => {
                for device in value.as_array().into_iter().flatten() {
                    let Some(number) = integer(&device["id"]) else { continue };
                    part.devices.push(DeviceFacts {
                        device: number,
                        name: device["name"].as_str().unwrap_or_default().to_owned(),
                        memory_bytes: integer(&device["totalGlobalMem"]),
                        multiprocessors: integer(&device["numSms"]),
                        properties: Some(device.to_string()),
                    });
                }
            }
            "host_name" | "hostname" => part.host = value.as_str().map(str::to_owned),
            _ => {}
        }
        facts.metadata.push((key, text));
    }
    facts.parts.push(part);
    facts
}

/// An integer, also where it is written as a text.
fn integer(value: &serde_json::Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}
