//! Events to rows.

use std::borrow::Cow;

use trace::schema::{DeviceRow, HostRow};

use super::category::{Meaning, meaning};
use super::event::{Event, Raw, object, text_of};
use super::rest::Rest;
use super::salvage;
use super::time::{MAX_TIME, NoTime, ns_from_us};
use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::import::gather::{Gather, TrackKey, TrackKind};

/// Puts the events that one thread parses into its [`Gather`].
pub(super) struct Rows<'g, 's> {
    pub gather: &'g mut Gather<'s>,
    inputs: String,
    pub(super) rest: String,
    /// Events understood, metadata included.
    pub events: u64,
    /// Whether any time was no whole microsecond.
    pub fine: bool,
}

impl<'g, 's> Rows<'g, 's> {
    pub fn new(gather: &'g mut Gather<'s>) -> Self {
        Self { gather, inputs: String::new(), rest: String::new(), events: 0, fine: false }
    }

    /// One event's text, which begins at byte `at` of the source.
    pub fn text(&mut self, text: &str, at: u64) -> Result<(), Error> {
        match serde_json::from_str::<Event<'_>>(text) {
            Ok(event) => self.event(&event, text, at),
            Err(_) => self.salvage(text, at),
        }
    }

    /// One event's bytes, which are no UTF-8.
    pub fn bytes(&mut self, bytes: &[u8], at: u64) -> Result<(), Error> {
        let text = String::from_utf8_lossy(bytes);
        if matches!(text, Cow::Owned(_)) {
            self.gather.odd(Anomaly::InvalidUtf8, || &text, at);
        }
        self.text(&text, at)
    }

    fn salvage(&mut self, text: &str, at: u64) -> Result<(), Error> {
        if let Some(fixed) = salvage::escape_controls(text)
            && let Ok(event) = serde_json::from_str::<Event<'_>>(&fixed)
        {
            self.gather.odd(Anomaly::ControlBytes, || &fixed, at);
            return self.event(&event, &fixed, at);
        }
        let mut offset = at;
        for piece in salvage::borders(text) {
            let here = offset;
            offset += piece.len() as u64;
            // The last piece may have the brackets of the file's end behind it.
            let mut values = serde_json::Deserializer::from_str(piece).into_iter::<Event<'_>>();
            if let Some(Ok(event)) = values.next() {
                self.event(&event, piece, here)?;
                continue;
            }
            match salvage::rebuild(piece) {
                Some(rebuilt) => match serde_json::from_str::<Event<'_>>(&rebuilt) {
                    Ok(event) => {
                        self.gather.odd(Anomaly::BrokenEvent, || piece.trim(), here);
                        self.event(&event, &rebuilt, here)?;
                    }
                    Err(_) => self.gather.odd(Anomaly::UnreadableEvent, || piece.trim(), here),
                },
                None => self.gather.odd(Anomaly::UnreadableEvent, || piece.trim(), here),
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, text: &str, at: u64) -> Result<(), Error> {
        let phase = &*event.ph.0;
        if phase.is_empty() {
            self.gather.odd(Anomaly::UnreadableEvent, || text, at);
            return Ok(());
        }
        self.events += 1;
        if phase == "M" {
            return self.metadata(event);
        }
        let Some(ts) = event.ts else {
            self.gather.odd(Anomaly::MissingTime, || text, at);
            return Ok(());
        };
        let Some(ts) = self.time(ts, text, at) else { return Ok(()) };
        let pid = event.pid.map_or(Cow::Borrowed(""), text_of);
        let tid = event.tid.map_or(Cow::Borrowed(""), text_of);
        match phase {
            "X" => {
                let dur = match event.dur {
                    Some(dur) => match self.time(dur, text, at) {
                        Some(dur) => dur,
                        None => return Ok(()),
                    },
                    None => {
                        self.gather.odd(Anomaly::MissingDuration, || text, at);
                        0
                    }
                };
                if ts.saturating_add(dur).unsigned_abs() >= MAX_TIME {
                    self.gather.odd(Anomaly::TimeOutOfRange, || text, at);
                    return Ok(());
                }
                self.complete(event, ts, dur, &pid, &tid, text, at)
            }
            "B" | "E" => self.pending(event, if phase == "B" { "begin" } else { "end" }, ts, &pid, &tid, None),
            "b" | "e" | "S" | "F" => {
                let id = event.id.map_or(Cow::Borrowed(""), text_of);
                let flag = if matches!(phase, "b" | "S") { "begin" } else { "end" };
                let line = format!("async {}", event.cat.as_ref().map_or("", |cat| &cat.0));
                self.pending(event, flag, ts, &pid, &line, Some(&id))
            }
            "s" | "t" | "f" => self.flow(event, ts, &pid, &tid),
            "C" => self.counter(event, ts, &pid, text, at),
            "i" | "I" | "R" | "P" | "n" | "T" | "p" | "O" | "N" | "D" => self.instant(event, ts, &pid, &tid),
            _ => {
                self.gather.odd(Anomaly::UnknownPhase, || text, at);
                Ok(())
            }
        }
    }

    /// Nanoseconds of a time; counts what is odd about it.
    fn time(&mut self, raw: Raw<'_>, text: &str, at: u64) -> Option<i64> {
        let number = raw.get();
        let inner = number.strip_prefix('"').and_then(|number| number.strip_suffix('"'));
        if inner.is_some() {
            self.gather.odd(Anomaly::TextNumber, || text, at);
        }
        let time = ns_from_us(inner.unwrap_or(number));
        match time {
            Ok(time) if time.ns.unsigned_abs() >= MAX_TIME => {
                self.gather.odd(Anomaly::TimeOutOfRange, || text, at);
                None
            }
            Ok(time) => {
                self.fine |= time.fine;
                if time.rounded {
                    self.gather.odd(Anomaly::SubNanosecond, || text, at);
                }
                Some(time.ns)
            }
            Err(NoTime::OutOfRange) => {
                self.gather.odd(Anomaly::TimeOutOfRange, || text, at);
                None
            }
            Err(NoTime::Malformed) => {
                self.gather.odd(Anomaly::MissingTime, || text, at);
                None
            }
        }
    }

    fn complete(
        &mut self,
        event: &Event<'_>,
        ts: i64,
        dur: i64,
        pid: &str,
        tid: &str,
        text: &str,
        at: u64,
    ) -> Result<(), Error> {
        let category = event.cat.as_ref().map(|cat| &*cat.0);
        let (device, kind) = match meaning(category.unwrap_or_default(), &event.name.0) {
            Meaning::Device(kind) => (true, kind),
            Meaning::Host(kind) => (false, kind),
            Meaning::Unknown => {
                self.gather.odd(Anomaly::UnknownCategory, || text, at);
                (false, "other")
            }
        };
        let flag = if dur < 0 {
            self.gather.odd(Anomaly::NegativeDuration, || text, at);
            Some("negative_duration")
        } else if device && ts == 0 {
            self.gather.odd(Anomaly::LostTimestamp, || text, at);
            Some("lost_timestamp")
        } else {
            if device && dur == 0 {
                self.gather.odd(Anomaly::ZeroDuration, || text, at);
            }
            None
        };
        if device {
            self.device_slice(event, kind, category, ts, dur, pid, tid, flag)
        } else {
            self.host_slice(event, kind, category, ts, dur, pid, tid, flag)
        }
    }

    fn device_slice(
        &mut self,
        event: &Event<'_>,
        kind: &'static str,
        category: Option<&str>,
        ts: i64,
        dur: i64,
        pid: &str,
        tid: &str,
        flag: Option<&str>,
    ) -> Result<(), Error> {
        let args = &event.args;
        let mut rest = Rest::default();
        let stated_device = rest.int(args.device, "device");
        let stated_stream = rest.int(args.stream, "stream");
        let device = stated_device.or_else(|| pid.parse().ok()).unwrap_or(-1);
        let stream = stated_stream.or_else(|| digits(tid)).unwrap_or(-1);
        // An unsigned -1.
        let stream = if stream == i64::from(u32::MAX) { -1 } else { stream };
        let track_kind = if kind == "annotation" { TrackKind::StreamAnnotations } else { TrackKind::Stream };
        let key = TrackKey { part: 0, kind: track_kind, process: pid, thread: tid };
        let track = self.gather.track(key, Some(device), Some(stream))?;
        let bandwidth = args.bandwidth.and_then(|raw| raw.get().parse::<f64>().ok()).filter(|value| value.is_finite());
        if bandwidth.is_none() {
            rest.keep(args.bandwidth, "memory bandwidth (GB/s)");
        }
        let group = args.group.map(text_of);
        let dtype = args.dtype.map(text_of);
        let row = DeviceRow {
            track,
            device,
            stream,
            ts,
            dur,
            kind,
            category,
            name: &event.name.0,
            correlation: rest.int(args.correlation, "correlation"),
            external_id: rest.int(args.external_id, "External id"),
            bytes: rest.int(args.bytes, "bytes"),
            bandwidth,
            group: group.as_deref(),
            sequence: rest.int(args.collective_sequence, "Seq"),
            dtype: dtype.as_deref(),
            flag,
            ..DeviceRow::default()
        };
        rest.keep(args.event_index, "Ev Idx");
        rest.keep(args.record_function, "Record function id");
        rest.keep(args.sequence, "Sequence number");
        rest.keep(args.forward_thread, "Fwd thread id");
        rest.keep(args.python_id, "Python id");
        rest.keep(args.python_parent, "Python parent id");
        rest.keep(args.python_module, "Python module id");
        rest.all(&args.inputs);
        rest.all(&args.rest);
        let text = rest.text(&mut self.rest);
        self.gather.push_device(&DeviceRow { args: text, ..row })
    }

    fn host_slice(
        &mut self,
        event: &Event<'_>,
        kind: &'static str,
        category: Option<&str>,
        ts: i64,
        dur: i64,
        pid: &str,
        tid: &str,
        flag: Option<&str>,
    ) -> Result<(), Error> {
        let key = TrackKey { part: 0, kind: TrackKind::Thread, process: pid, thread: tid };
        let track = self.gather.track(key, None, None)?;
        self.host_row(event, kind, category, (ts, dur, track), flag, None, |gather, row| gather.push(row))
    }

    fn pending(
        &mut self,
        event: &Event<'_>,
        flag: &str,
        ts: i64,
        pid: &str,
        tid: &str,
        id: Option<&str>,
    ) -> Result<(), Error> {
        let category = event.cat.as_ref().map(|cat| &*cat.0);
        let kind = match meaning(category.unwrap_or_default(), &event.name.0) {
            Meaning::Host(kind) => kind,
            _ => "other",
        };
        let key = TrackKey {
            part: 0,
            kind: if id.is_some() { TrackKind::Other } else { TrackKind::Thread },
            process: pid,
            thread: tid,
        };
        let track = self.gather.track(key, None, None)?;
        self.host_row(event, kind, category, (ts, 0, track), Some(flag), id, |gather, row| gather.push_pending(row))
    }

    /// Makes the row of a host slice; `id` takes the place of the operands, for begins and ends that are paired by it.
    fn host_row(
        &mut self,
        event: &Event<'_>,
        kind: &str,
        category: Option<&str>,
        (ts, dur, track): (i64, i64, i64),
        flag: Option<&str>,
        id: Option<&str>,
        push: impl FnOnce(&mut Gather<'s>, &HostRow<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let args = &event.args;
        let mut rest = Rest::default();
        let mut row = HostRow {
            track,
            ts,
            dur,
            kind,
            category,
            name: &event.name.0,
            correlation: rest.int(args.correlation, "correlation"),
            external_id: rest.int(args.external_id, "External id"),
            sequence: rest.int(args.sequence, "Sequence number"),
            forward_thread: rest.int(args.forward_thread, "Fwd thread id"),
            event_index: rest.int(args.event_index, "Ev Idx"),
            record_function: rest.int(args.record_function, "Record function id"),
            python_id: rest.int(args.python_id, "Python id"),
            python_parent: rest.int(args.python_parent, "Python parent id"),
            python_module: rest.int(args.python_module, "Python module id"),
            flag,
            ..HostRow::default()
        };
        rest.keep(args.stream, "stream");
        rest.keep(args.device, "device");
        rest.keep(args.bytes, "bytes");
        rest.keep(args.bandwidth, "memory bandwidth (GB/s)");
        rest.keep(args.group, "Process Group Name");
        rest.keep(args.collective_sequence, "Seq");
        rest.keep(args.dtype, "dtype");
        rest.all(&args.rest);
        row.args = rest.text(&mut self.rest);
        if let Some(id) = id {
            row.inputs = Some(id);
        } else if !args.inputs.is_empty() {
            object(&mut self.inputs, &args.inputs);
            row.inputs = Some(&self.inputs);
        }
        push(self.gather, &row)
    }
}

/// The number in `7` or `stream 7`.
fn digits(text: &str) -> Option<i64> {
    let start = text.rfind(|character: char| !character.is_ascii_digit()).map_or(0, |at| at + 1);
    if text.starts_with('-') { text.parse().ok() } else { text[start..].parse().ok() }
}
