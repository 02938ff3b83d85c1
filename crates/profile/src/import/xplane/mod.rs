//! `xplane.pb`: what the profilers of TensorFlow, JAX and PyTorch/XLA write.
//!
//! The file is mapped and walked in place, plane by plane, line by line, event by event. Planes of devices give streams, those
//! of hosts threads; lines that the profiler derives of streams (modules, operators, steps) become annotations.

mod events;
mod plane;
mod wire;

use std::fs::File;
use std::path::Path;

use events::{Events, Role};
use memmap2::Mmap;
use plane::{Line, Plane, Stat};
use wire::Fields;

use super::diagnostics::Anomaly;
use super::gather::{Gather, Shared};
use super::{DeviceFacts, Error, PartFacts, SourceFacts};
use crate::json::Object;

/// Planes that a file may have.
const MAX_PLANES: usize = 1 << 16;
/// The plane with the times of the session. Of others without events, such as the compiled programs, nothing is kept.
const ENVIRONMENT: &str = "Task Environment";

/// Reads a file into `shared` as this source.
pub(super) fn read(path: &Path, shared: &Shared, source: u32) -> Result<SourceFacts, Error> {
    let mut gather = Gather::new(shared, source);
    let facts = fill(path, &mut gather)?;
    gather.finish()?;
    Ok(facts)
}

fn fill(path: &Path, gather: &mut Gather<'_>) -> Result<SourceFacts, Error> {
    let file = File::open(path).map_err(Error::io(path))?;
    let bytes = file.metadata().map_err(Error::io(path))?.len();
    if bytes == 0 {
        return Err(Error::format(path, "an empty file"));
    }
    // SAFETY: the map is only read. As with every file that is mapped, nobody may cut it while it is: that is the user's part.
    let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
    let mut facts = space(&map, gather).map_err(|error| match error {
        // It knows no path.
        Malformed::Format(reason) => Error::format(path, reason),
        Malformed::Other(error) => error,
    })?;
    facts.bytes = bytes;
    Ok(facts)
}

enum Malformed {
    Format(&'static str),
    Other(Error),
}

impl From<Error> for Malformed {
    fn from(error: Error) -> Self {
        Malformed::Other(error)
    }
}

/// Reads an `XSpace`.
fn space(message: &[u8], gather: &mut Gather<'_>) -> Result<SourceFacts, Malformed> {
    let mut planes = Vec::new();
    let mut part = PartFacts::default();
    let mut fields = Fields::of(message);
    for field in fields.by_ref() {
        let Some(bytes) = field.value.bytes() else { continue };
        match field.number {
            1 if planes.len() == MAX_PLANES => {
                return Err(Malformed::Other(Error::TooMuch { what: "planes", limit: MAX_PLANES }));
            }
            1 => planes.push(bytes),
            // The names of the hosts; there is one.
            4 if part.host.is_none() => part.host = Some(plane::text(bytes, gather).into_owned()),
            _ => {}
        }
    }
    let cut = fields.cut;
    let named = |message: &&[u8]| {
        let mut names = Fields::of(message).filter(|field| field.number == 2);
        names.next().and_then(|name| name.value.bytes()).is_some_and(|name| std::str::from_utf8(name).is_ok())
    };
    if !planes.first().is_some_and(named) {
        return Err(Malformed::Format("no xplane file: it does not begin with a plane that has a name"));
    }
    if cut {
        gather.odd(Anomaly::Truncated, || format!("the file ends in the middle of plane {}", planes.len()), None);
    }

    let mut facts = SourceFacts { resolution_ns: 1, ..SourceFacts::default() };
    let mut session_start = None;
    let mut latest_line = i64::MIN;
    let mut events = Events::new(gather);
    for message in planes {
        let plane = Plane::read(message, events.gather)?;
        if plane.name == ENVIRONMENT {
            session_start = environment(&plane, &mut facts, events.gather).or(session_start);
            continue;
        }
        let device = device_number(&plane.name);
        if let Some(device) = device
            && let Some(described) = describe(&plane, device, events.gather)
        {
            part.devices.push(described);
        }
        let mut lines = Vec::new();
        for message in &plane.lines {
            let (line, count) = Line::read(message, events.gather);
            if count > 0 {
                latest_line = latest_line.max(line.timestamp_ns);
                lines.push((line, *message));
            }
        }
        if lines.is_empty() {
            events.gather.odd(Anomaly::EmptyPlane, || &plane.name, None);
            continue;
        }
        let streams = lines.iter().any(|(line, _)| stream_number(&line.name).is_some());
        for (line, message) in lines {
            let role = match device {
                None => Role::Thread,
                Some(_) => match stream_number(&line.name) {
                    Some(stream) => Role::Stream(Some(stream)),
                    // TPUs have no streams: their operators are what they execute.
                    None if !streams && line.name == "XLA Ops" => Role::Stream(None),
                    None => Role::Derived,
                },
            };
            events.line(&plane, &line, role, device.unwrap_or(-1), message)?;
        }
    }
    facts.events = events.count;
    if facts.events == 0 {
        gather.odd(Anomaly::EmptyTrace, || "no plane has events", None);
    }
    // Times count from the start of the session, unless they are of 1970 already.
    if let Some(start) = session_start {
        facts.base_ns = if latest_line < start { start } else { 0 };
        facts.wall_offset_ns = Some(0);
    }
    facts.parts.push(part);
    Ok(facts)
}

/// Keeps when the session began and ended, and returns when it began: ns since 1970. Nothing else of the environment is kept.
fn environment(plane: &Plane<'_>, facts: &mut SourceFacts, gather: &mut Gather<'_>) -> Option<i64> {
    let mut start = None;
    for message in &plane.own {
        let (name, Some(value)) = plane.stat(message, gather) else { continue };
        let Some(number) = value.int() else { continue };
        if !matches!(&*name, "profile_start_time" | "profile_stop_time") {
            continue;
        }
        if name == "profile_start_time" {
            start = Some(number).filter(|&start| start > 0);
        }
        facts.metadata.push((name.into_owned(), number.to_string()));
    }
    start
}

/// What a plane says of its device.
fn describe(plane: &Plane<'_>, device: i64, gather: &mut Gather<'_>) -> Option<DeviceFacts> {
    if plane.own.is_empty() {
        return None;
    }
    let (mut vendor, mut model) = (None, None);
    let (mut memory_bytes, mut multiprocessors) = (None, None);
    let mut properties = Vec::new();
    let mut object = Object::open(&mut properties);
    object.int("id", device);
    for message in &plane.own {
        let (name, Some(value)) = plane.stat(message, gather) else { continue };
        match (&*name, &value) {
            ("device_vendor", Stat::Text(text)) => vendor = Some(text.to_string()),
            ("device_type_string", Stat::Text(text)) => model = Some(text.to_string()),
            ("memory_size", _) => memory_bytes = value.int(),
            ("core_count", _) => multiprocessors = value.int(),
            _ => {}
        }
        value.put(&name, &mut object);
    }
    object.close();
    let kind = plane.name.rsplit(':').nth(1).unwrap_or("device");
    let name =
        model.or_else(|| vendor.map(|vendor| format!("{vendor} {kind}"))).unwrap_or_else(|| plane.name.to_string());
    Some(DeviceFacts { device, name, memory_bytes, multiprocessors, properties: String::from_utf8(properties).ok() })
}

/// The number of the device in `/device:GPU:0`; none for hosts, and for planes that are no device in spite of their name.
fn device_number(plane: &str) -> Option<i64> {
    let (kind, number) = plane.strip_prefix("/device:")?.split_once(':')?;
    if kind == "CUSTOM" { None } else { number.split(' ').next()?.parse().ok() }
}

/// The number of the stream in `Stream #17(Kernel)`.
fn stream_number(line: &str) -> Option<i64> {
    let rest = line.strip_prefix("Stream #")?;
    let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests;
