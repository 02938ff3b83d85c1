//! Events of a line to rows.

use std::borrow::Cow;

use trace::schema::{DeviceRow, FlowRow, HostRow};

use super::plane::{Line, Plane, Stat};
use super::wire::{Fields, Value};
use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::import::gather::{Gather, Naming, TrackKey, TrackKind};
use crate::json::Object;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A stream of a device; none: what a device without streams executes.
    Stream(Option<i64>),
    /// What the profiler derives of a device's streams: modules, operators, steps.
    Derived,
    /// A thread of the host.
    Thread,
}

/// Puts the events of lines where they belong.
pub(super) struct Events<'g, 's> {
    pub gather: &'g mut Gather<'s>,
    buffer: Vec<u8>,
    /// Events read.
    pub count: u64,
}

/// The fields of an event.
#[derive(Default)]
struct Event<'a> {
    metadata: i64,
    offset_ps: Option<i64>,
    duration_ps: i64,
    message: &'a [u8],
}

/// What the statistics of an event mean.
#[derive(Default)]
struct Meaning<'a> {
    correlation: Option<i64>,
    /// `memcpy_details`, `memset_details` or `kernel_details`.
    details: Option<(Details, Cow<'a, str>)>,
    step: bool,
    args: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Details {
    Kernel,
    Copy,
    Fill,
}

impl<'g, 's> Events<'g, 's> {
    pub fn new(gather: &'g mut Gather<'s>) -> Self {
        Self { gather, buffer: Vec::new(), count: 0 }
    }

    /// Reads the events of a line. `device` is the number of the plane's device, -1 for none.
    pub fn line<'a>(
        &mut self,
        plane: &Plane<'a>,
        line: &Line<'a>,
        role: Role,
        device: i64,
        message: &'a [u8],
    ) -> Result<(), Error> {
        let track = self.track(plane, line, role, device)?;
        let mut fields = Fields::of(message);
        for field in fields.by_ref() {
            let (4, Value::Bytes(bytes)) = (field.number, field.value) else { continue };
            if field.cut {
                break;
            }
            self.count += 1;
            let event = Event::read(bytes);
            let name = plane.event_name(event.metadata, self.gather);
            let Some((ts, dur)) = self.time(line, &event, &name) else { continue };
            match role {
                Role::Thread => self.host(plane, &event, &name, track, (ts, dur))?,
                Role::Stream(stream) => self.device(plane, &event, &name, track, (ts, dur), (device, stream), false)?,
                Role::Derived => self.device(plane, &event, &name, track, (ts, dur), (device, None), true)?,
            }
        }
        // Within a file that is cut this is no second oddity.
        if fields.cut && self.gather.diagnostics.of(Anomaly::Truncated) == 0 {
            self.gather.odd(Anomaly::Truncated, || format!("line {:?} ends in the middle", line.name), None);
        }
        Ok(())
    }

    fn track(&mut self, plane: &Plane<'_>, line: &Line<'_>, role: Role, device: i64) -> Result<i64, Error> {
        let name = (!line.name.is_empty()).then(|| line.name.to_string());
        let (process, thread, kind, stream) = match role {
            Role::Thread => (plane.name.to_string(), line.id.to_string(), TrackKind::Thread, None),
            Role::Stream(Some(stream)) => (device.to_string(), stream.to_string(), TrackKind::Stream, Some(stream)),
            Role::Stream(None) => (device.to_string(), line.name.to_string(), TrackKind::Stream, None),
            Role::Derived => (device.to_string(), line.name.to_string(), TrackKind::StreamAnnotations, None),
        };
        self.gather.name(0, &process, Some(&thread), Naming { name, label: None, order: stream })?;
        let on_device = role != Role::Thread;
        let order = on_device.then_some((1 << 24) + device);
        self.gather.name(0, &process, None, Naming { name: Some(plane.name.to_string()), label: None, order })?;
        let key = TrackKey { part: 0, kind, process: &process, thread: &thread };
        let on_device = on_device.then_some(device);
        self.gather.track(key, on_device, stream.or(on_device.map(|_| -1)))
    }

    /// Start and duration in ns: picoseconds are rounded, ties to even, at both ends, so that what touches still touches.
    fn time(&mut self, line: &Line<'_>, event: &Event<'_>, name: &str) -> Option<(i64, i64)> {
        let Some(offset) = event.offset_ps else {
            // A number of occurrences in place of a time.
            self.gather.odd(Anomaly::MissingTime, || name, None);
            return None;
        };
        let start = i128::from(line.timestamp_ns) * 1000 + i128::from(offset);
        let end = start + i128::from(event.duration_ps);
        if start % 1000 != 0 || end % 1000 != 0 {
            self.gather.odd(
                Anomaly::SubNanosecond,
                || format!("{name} at {start} ps for {} ps", event.duration_ps),
                None,
            );
        }
        let (first, last) = (i64::try_from(ns_from_ps(start)), i64::try_from(ns_from_ps(end)));
        let times = first.ok().zip(last.ok()).and_then(|(first, last)| Some((first, last.checked_sub(first)?)));
        // The smallest integer stands for none.
        let times = times.filter(|(first, dur)| *first != i64::MIN && *dur != i64::MIN);
        if times.is_none() {
            self.gather.odd(Anomaly::TimeOutOfRange, || format!("{name} at {start} ps"), None);
        }
        times
    }

    /// Looks at the statistics of an event; those without a column become arguments.
    fn meaning<'a>(&mut self, plane: &Plane<'a>, event: &Event<'a>) -> Meaning<'a> {
        let mut meaning = Meaning::default();
        self.buffer.clear();
        let mut object = Object::open(&mut self.buffer);
        for field in Fields::of(event.message) {
            let (4, Value::Bytes(bytes)) = (field.number, field.value) else { continue };
            let (name, Some(value)) = plane.stat(bytes, self.gather) else { continue };
            let details = match &*name {
                "kernel_details" => Some(Details::Kernel),
                "memcpy_details" => Some(Details::Copy),
                "memset_details" => Some(Details::Fill),
                _ => None,
            };
            match &*name {
                "correlation_id" if value.int().is_some_and(|id| id != 0) => {
                    meaning.correlation = value.int();
                    continue;
                }
                "step_num" => meaning.step = true,
                _ => {}
            }
            if let (Some(details), Stat::Text(text)) = (details, &value) {
                meaning.details = Some((details, text.clone()));
            }
            if !value.put(&name, &mut object) {
                self.gather.odd(Anomaly::OversizedText, || format!("statistics of an event, from {name} on"), None);
                break;
            }
        }
        let any = object.any();
        object.close();
        meaning.args = any.then(|| String::from_utf8_lossy(&self.buffer).into_owned());
        meaning
    }

    fn device<'a>(
        &mut self,
        plane: &Plane<'a>,
        event: &Event<'a>,
        name: &str,
        track: i64,
        (ts, dur): (i64, i64),
        (device, stream): (i64, Option<i64>),
        derived: bool,
    ) -> Result<(), Error> {
        let meaning = self.meaning(plane, event);
        let details = meaning.details.as_ref();
        let kind = match details.map(|(kind, _)| *kind) {
            _ if derived => "annotation",
            Some(Details::Copy) => "memcpy",
            Some(Details::Fill) => "memset",
            Some(Details::Kernel) => "kernel",
            None if begins(name, "memcpy") => "memcpy",
            None if begins(name, "memset") => "memset",
            None => "kernel",
        };
        let words = details.map_or("", |(_, text)| text);
        let shown = match kind {
            "memcpy" => copy_name(name, words),
            _ => Cow::Borrowed(name),
        };
        let flag = self.flag(dur, &shown, kind != "annotation");
        let correlation = meaning.correlation.filter(|_| !derived);
        if let Some(id) = correlation.filter(|_| flag.is_none()) {
            self.arrow(track, ts, id, "f")?;
        }
        self.gather.push_device(&DeviceRow {
            track,
            device,
            stream: stream.unwrap_or(-1),
            ts,
            dur,
            kind,
            name: &shown,
            correlation,
            bytes: if matches!(kind, "memcpy" | "memset") {
                word(words, "size:").and_then(|size| size.parse().ok())
            } else {
                None
            },
            flag,
            args: meaning.args.as_deref(),
            ..DeviceRow::default()
        })
    }

    fn host<'a>(
        &mut self,
        plane: &Plane<'a>,
        event: &Event<'a>,
        name: &str,
        track: i64,
        (ts, dur): (i64, i64),
    ) -> Result<(), Error> {
        let meaning = self.meaning(plane, event);
        let kind = host_kind(name, &meaning, &plane.name);
        let flag = self.flag(dur, name, false);
        let correlation = meaning.correlation.filter(|_| matches!(kind, "runtime" | "driver"));
        if let Some(id) = correlation.filter(|_| flag.is_none()) {
            self.arrow(track, ts, id, "s")?;
        }
        self.gather.push(&HostRow {
            track,
            ts,
            dur,
            kind,
            name,
            correlation,
            flag,
            args: meaning.args.as_deref(),
            ..HostRow::default()
        })
    }

    fn flag(&mut self, dur: i64, name: &str, work: bool) -> Option<&'static str> {
        if dur < 0 {
            self.gather.odd(Anomaly::NegativeDuration, || name, None);
            return Some("negative_duration");
        }
        if dur == 0 && work {
            self.gather.odd(Anomaly::ZeroDuration, || name, None);
        }
        None
    }

    /// An end of the arrow from a launch to what it started, in the words of Kineto.
    fn arrow(&mut self, track: i64, ts: i64, id: i64, phase: &str) -> Result<(), Error> {
        self.gather.push(&FlowRow {
            rank: 0,
            track,
            ts,
            id: Some(id),
            id_text: None,
            phase,
            category: Some("ac2g"),
            name: "ac2g",
            binding: None,
        })
    }
}

impl<'a> Event<'a> {
    fn read(message: &'a [u8]) -> Self {
        let mut event = Event { message, ..Event::default() };
        let mut occurrences = false;
        for field in Fields::of(message) {
            match field.number {
                1 => event.metadata = field.value.int().unwrap_or(0),
                2 => event.offset_ps = field.value.int(),
                3 => event.duration_ps = field.value.int().unwrap_or(0),
                5 => occurrences = true,
                _ => {}
            }
        }
        // Protobuf leaves out a number that is 0.
        if event.offset_ps.is_none() && !occurrences {
            event.offset_ps = Some(0);
        }
        event
    }
}

/// The kind of a host event: Python frames are called `$file.py:12 function`, calls of the libraries by their names; the rest
/// are the framework's own spans.
fn host_kind(name: &str, meaning: &Meaning<'_>, plane: &str) -> &'static str {
    let call = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
    };
    if name.starts_with('$') || plane.contains("python") {
        "python"
    } else if call("cu") {
        "driver"
    } else if call("cuda") || call("hip") || call("hsa_") {
        "runtime"
    } else if meaning.step {
        "annotation"
    } else {
        "operator"
    }
}

/// Picoseconds to nanoseconds, ties to even.
fn ns_from_ps(ps: i128) -> i128 {
    let (whole, rest) = (ps.div_euclid(1000), ps.rem_euclid(1000));
    match rest.cmp(&500) {
        std::cmp::Ordering::Less => whole,
        std::cmp::Ordering::Greater => whole + 1,
        std::cmp::Ordering::Equal => whole + whole.rem_euclid(2),
    }
}

fn begins(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// The word after a key in details like `kind_src:pageable kind_dst:device size:64`.
fn word<'t>(details: &'t str, key: &str) -> Option<&'t str> {
    details.split_whitespace().find_map(|field| field.strip_prefix(key))
}

/// The name that Kineto gives a copy: `MemcpyH2D` is `Memcpy HtoD (Pageable -> Device)`.
fn copy_name<'n>(name: &'n str, details: &str) -> Cow<'n, str> {
    let direction = match name {
        "MemcpyH2D" => "HtoD",
        "MemcpyD2H" => "DtoH",
        "MemcpyD2D" => "DtoD",
        "MemcpyP2P" => "PtoP",
        _ => return Cow::Borrowed(name),
    };
    let kind = |key: &str| {
        let word = word(details, key)?;
        let mut letters = word.chars();
        let first = letters.next()?.to_ascii_uppercase();
        Some(format!("{first}{}", letters.as_str()))
    };
    Cow::Owned(match (kind("kind_src:"), kind("kind_dst:")) {
        (Some(from), Some(to)) => format!("Memcpy {direction} ({from} -> {to})"),
        _ => format!("Memcpy {direction}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picoseconds_are_rounded_to_even() {
        for (ps, ns) in [(0, 0), (499, 0), (500, 0), (501, 1), (1500, 2), (2500, 2), (-500, 0), (-1500, -2), (-501, -1)]
        {
            assert_eq!(ns_from_ps(ps), ns, "{ps} ps");
        }
    }

    #[test]
    fn copies_and_calls_are_known_by_their_names() {
        let details = "kind_src:pageable kind_dst:device size:64 dest:0 async:1";
        assert_eq!(copy_name("MemcpyH2D", details), "Memcpy HtoD (Pageable -> Device)");
        assert_eq!(copy_name("MemcpyD2D", ""), "Memcpy DtoD");
        assert_eq!(copy_name("CopyDeviceToHost", details), "CopyDeviceToHost");
        assert_eq!(word(details, "size:"), Some("64"));
        let kind = |name| host_kind(name, &Meaning::default(), "/host:CPU");
        assert_eq!(
            (kind("hipLaunchKernel"), kind("cuLaunchKernel"), kind("cudaMemcpy")),
            ("runtime", "driver", "runtime")
        );
        assert_eq!(
            (kind("$profiler.py:101 start_trace"), kind("cumsum"), kind("history")),
            ("python", "operator", "operator")
        );
    }
}
