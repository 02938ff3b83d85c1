//! A plane: its names, its statistics and its lines. Numbers of fields are those of `xplane.proto` (TensorFlow Profiler).

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::wire::{Fields, Value};
use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::import::gather::Gather;
use crate::json::Object;

/// Names of events or of statistics that a plane may have.
const MAX_NAMES: usize = 1 << 20;
/// Lines that all planes together may have.
const MAX_LINES: usize = 1 << 18;
/// A text that becomes a name or an argument is cut to this many bytes.
const MAX_TEXT_BYTES: usize = 1 << 16;
/// Bytes of the arguments of one event.
const MAX_ARGS_BYTES: usize = 1 << 18;

/// A plane without its events.
pub(super) struct Plane<'a> {
    pub name: Cow<'a, str>,
    /// Names by number: `XEventMetadata.display_name`, else its `name`.
    events: FxHashMap<i64, &'a [u8]>,
    /// Names by number: `XStatMetadata.name`.
    stats: FxHashMap<i64, &'a [u8]>,
    /// `XStat` messages of the plane itself.
    pub own: Vec<&'a [u8]>,
    /// `XLine` messages.
    pub lines: Vec<&'a [u8]>,
}

/// A line without its events.
#[derive(Default)]
pub(super) struct Line<'a> {
    pub id: i64,
    pub name: Cow<'a, str>,
    /// Start of the line, ns: events count from it.
    pub timestamp_ns: i64,
}

/// A value of a statistic.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stat<'a> {
    Float(f64),
    Unsigned(u64),
    Int(i64),
    Text(Cow<'a, str>),
    /// Serialised messages, as of compiled programs: not kept.
    Bytes,
}

impl<'a> Plane<'a> {
    /// Reads everything of a plane but its events; names may come after the lines that use them.
    pub fn read(message: &'a [u8], gather: &mut Gather<'_>) -> Result<Self, Error> {
        let mut plane = Plane {
            name: Cow::Borrowed(""),
            events: FxHashMap::default(),
            stats: FxHashMap::default(),
            own: Vec::new(),
            lines: Vec::new(),
        };
        let mut fields = Fields::of(message);
        for field in fields.by_ref() {
            let Some(bytes) = field.value.bytes() else { continue };
            match field.number {
                2 => plane.name = text(bytes, gather),
                3 => {
                    if plane.lines.len() == MAX_LINES {
                        return Err(Error::TooMuch { what: "lines of a plane", limit: MAX_LINES });
                    }
                    plane.lines.push(bytes);
                }
                4 => add(&mut plane.events, bytes, 4)?,
                5 => add(&mut plane.stats, bytes, 2)?,
                6 if plane.own.len() < 4096 => plane.own.push(bytes),
                _ => {}
            }
        }
        // Within a file that is cut this is no second oddity.
        if fields.cut && gather.diagnostics.of(Anomaly::Truncated) == 0 {
            gather.odd(Anomaly::Truncated, || format!("plane {:?} ends in the middle", plane.name), None);
        }
        Ok(plane)
    }

    /// The name of an event.
    pub fn event_name(&self, id: i64, gather: &mut Gather<'_>) -> Cow<'a, str> {
        match self.events.get(&id) {
            Some(bytes) => text(bytes, gather),
            None => Cow::Owned(format!("event {id}")),
        }
    }

    /// Name and value of an `XStat`.
    pub fn stat(&self, message: &'a [u8], gather: &mut Gather<'_>) -> (Cow<'a, str>, Option<Stat<'a>>) {
        let (mut id, mut value) = (0, None);
        for field in Fields::of(message) {
            match (field.number, field.value) {
                (1, Value::Varint(number)) => id = number as i64,
                (2, Value::Fixed64(bits)) => value = Some(Stat::Float(f64::from_bits(bits))),
                (3, Value::Varint(number)) => value = Some(Stat::Unsigned(number)),
                (4, Value::Varint(number)) => value = Some(Stat::Int(number as i64)),
                (5, Value::Bytes(bytes)) => value = Some(Stat::Text(text(bytes, gather))),
                (6, Value::Bytes(_)) => value = Some(Stat::Bytes),
                // A text that is kept once, among the names of statistics.
                (7, Value::Varint(number)) => {
                    value = self.stats.get(&(number as i64)).map(|bytes| Stat::Text(text(bytes, gather)));
                }
                _ => {}
            }
        }
        let name = match self.stats.get(&id) {
            Some(bytes) => text(bytes, gather),
            None => Cow::Owned(format!("stat {id}")),
        };
        (name, value)
    }
}

/// Adds an entry of a map from numbers to metadata: the name is field 2 of the value, and `display` wins over it.
fn add<'a>(names: &mut FxHashMap<i64, &'a [u8]>, entry: &'a [u8], display: u32) -> Result<(), Error> {
    let (mut id, mut name, mut shown) = (None, None, None);
    for field in Fields::of(entry) {
        match (field.number, field.value) {
            (1, Value::Varint(key)) => id = Some(key as i64),
            (2, Value::Bytes(metadata)) => {
                for field in Fields::of(metadata) {
                    match (field.number, field.value) {
                        (1, Value::Varint(key)) if id.is_none() => id = Some(key as i64),
                        (2, Value::Bytes(bytes)) => name = Some(bytes),
                        (number, Value::Bytes(bytes)) if number == display && !bytes.is_empty() => shown = Some(bytes),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if names.len() >= MAX_NAMES {
        return Err(Error::TooMuch { what: "names of events or statistics in a plane", limit: MAX_NAMES });
    }
    // Protobuf leaves out a number that is 0.
    if let Some(name) = shown.or(name) {
        names.insert(id.unwrap_or(0), name);
    }
    Ok(())
}

impl<'a> Line<'a> {
    /// Reads a line, and how many events it has.
    pub fn read(message: &'a [u8], gather: &mut Gather<'_>) -> (Self, u64) {
        let mut line = Line::default();
        let mut events = 0;
        let mut display = None;
        for field in Fields::of(message) {
            match (field.number, field.value) {
                (1, Value::Varint(id)) => line.id = id as i64,
                (2, Value::Bytes(bytes)) => line.name = text(bytes, gather),
                (3, Value::Varint(ns)) => line.timestamp_ns = ns as i64,
                (4, Value::Bytes(_)) => events += 1,
                (11, Value::Bytes(bytes)) if !bytes.is_empty() => display = Some(text(bytes, gather)),
                _ => {}
            }
        }
        if let Some(display) = display {
            line.name = display;
        }
        (line, events)
    }
}

impl Stat<'_> {
    pub fn int(&self) -> Option<i64> {
        match self {
            Stat::Unsigned(value) => Some(*value as i64),
            Stat::Int(value) => Some(*value),
            Stat::Text(text) => text.parse().ok(),
            Stat::Float(_) | Stat::Bytes => None,
        }
    }

    /// Adds it to an object; false when the object is full.
    pub fn put(&self, name: &str, object: &mut Object<'_>) -> bool {
        if object.len() > MAX_ARGS_BYTES {
            return false;
        }
        match self {
            Stat::Float(value) => object.float(name, *value),
            Stat::Unsigned(value) => object.raw(name, &value.to_string()),
            Stat::Int(value) => object.int(name, *value),
            Stat::Text(text) => object.text(name, text),
            Stat::Bytes => {}
        }
        true
    }
}

/// Bytes as a text of bounded length.
pub(super) fn text<'a>(bytes: &'a [u8], gather: &mut Gather<'_>) -> Cow<'a, str> {
    let bounded = &bytes[..bytes.len().min(MAX_TEXT_BYTES)];
    if bounded.len() < bytes.len() {
        gather.odd(Anomaly::OversizedText, || format!("{} bytes", bytes.len()), None);
        // A character that the limit cuts is left out.
        let text = String::from_utf8_lossy(bounded);
        return Cow::Owned(text.trim_end_matches('\u{fffd}').to_owned());
    }
    let text = String::from_utf8_lossy(bounded);
    if matches!(text, Cow::Owned(_)) {
        gather.odd(Anomaly::InvalidUtf8, || &text, None);
    }
    text
}
