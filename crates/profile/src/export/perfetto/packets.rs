//! Packets on their way into the file, their texts numbered.

use prost::encoding;
use trace::Texts;

use super::proto::{
    CLEARED, DebugAnnotation, EventType, Interned, InternedData, NEEDS_STATE, TracePacket, TrackDescriptor, TrackEvent,
};
use crate::export::output::Output;
use crate::export::{Error, Written};

/// Bytes of texts after which numbering begins anew, so that memory stays bounded.
const MAX_TEXT_BYTES: usize = 32 << 20;
/// Bytes of packets gathered before they are written.
const BUFFER_BYTES: usize = 1 << 18;

/// What a slice or an instant says besides its time and its name.
#[derive(Default)]
pub(super) struct Details {
    annotations: Vec<(&'static str, Value)>,
    flows: Vec<u64>,
}

/// A value of an annotation.
enum Value {
    Int(i64),
    Float(f64),
    Text(String),
    Json(String),
}

impl Details {
    pub fn int(&mut self, name: &'static str, value: Option<i64>) {
        self.annotations.extend(value.map(|value| (name, Value::Int(value))));
    }

    /// NaN is nothing.
    pub fn float(&mut self, name: &'static str, value: f64) {
        if !value.is_nan() {
            self.annotations.push((name, Value::Float(value)));
        }
    }

    pub fn text(&mut self, name: &'static str, value: Option<&str>) {
        self.annotations.extend(value.map(|value| (name, Value::Text(value.to_owned()))));
    }

    pub fn json(&mut self, name: &'static str, value: Option<&str>) {
        self.annotations.extend(value.map(|value| (name, Value::Json(value.to_owned()))));
    }

    /// Slices that share this number are joined by arrows, in the order of their times.
    pub fn flow(&mut self, id: u64) {
        self.flows.push(id);
    }
}

/// Writes packets of one sequence.
pub(super) struct Packets {
    output: Output,
    buffer: Vec<u8>,
    /// Numbered texts: names, categories, names of annotations.
    texts: [Texts; 3],
    begin_anew: bool,
    /// Slices, instants and counter values so far.
    pub events: u64,
}

const NAMES: usize = 0;
const CATEGORIES: usize = 1;
const ANNOTATIONS: usize = 2;

impl Packets {
    pub fn new(output: Output) -> Self {
        let texts = std::array::from_fn(|_| Texts::new());
        Self { output, buffer: Vec::with_capacity(2 * BUFFER_BYTES), texts, begin_anew: true, events: 0 }
    }

    /// Describes a track.
    pub fn describe(&mut self, track: TrackDescriptor) -> Result<(), Error> {
        self.packet(TracePacket { track_descriptor: Some(track), ..TracePacket::default() })
    }

    /// A slice on a line where slices nest; times in ns.
    pub fn slice(
        &mut self,
        track: u64,
        (start, end): (u64, u64),
        (category, name): (&str, &str),
        details: Details,
    ) -> Result<(), Error> {
        self.event(track, start, EventType::SliceBegin, Some((category, name)), details)?;
        let end_event =
            TrackEvent { r#type: Some(EventType::SliceEnd.into()), track_uuid: Some(track), ..TrackEvent::default() };
        self.packet(TracePacket { timestamp: Some(end), track_event: Some(end_event), ..TracePacket::default() })
    }

    /// A point in time.
    pub fn instant(
        &mut self,
        track: u64,
        ts: u64,
        (category, name): (&str, &str),
        details: Details,
    ) -> Result<(), Error> {
        self.event(track, ts, EventType::Instant, Some((category, name)), details)
    }

    /// A value of a counter track.
    pub fn counter(&mut self, track: u64, ts: u64, value: f64) -> Result<(), Error> {
        self.events += 1;
        let event = TrackEvent {
            r#type: Some(EventType::Counter.into()),
            track_uuid: Some(track),
            double_counter_value: Some(value),
            ..TrackEvent::default()
        };
        self.packet(TracePacket { timestamp: Some(ts), track_event: Some(event), ..TracePacket::default() })
    }

    fn event(
        &mut self,
        track: u64,
        ts: u64,
        kind: EventType,
        labels: Option<(&str, &str)>,
        details: Details,
    ) -> Result<(), Error> {
        self.events += 1;
        if self.texts.iter().map(Texts::bytes).sum::<usize>() > MAX_TEXT_BYTES {
            self.texts.iter_mut().for_each(Texts::clear);
            self.begin_anew = true;
        }
        let mut interned = InternedData::default();
        let mut event = TrackEvent {
            r#type: Some(kind.into()),
            track_uuid: Some(track),
            flow_ids: details.flows,
            ..TrackEvent::default()
        };
        if let Some((category, name)) = labels {
            event.name_iid = Some(number(&mut self.texts[NAMES], name, &mut interned.event_names));
            if !category.is_empty() {
                let iid = number(&mut self.texts[CATEGORIES], category, &mut interned.event_categories);
                event.category_iids.push(iid);
            }
        }
        for (name, value) in details.annotations {
            let iid = number(&mut self.texts[ANNOTATIONS], name, &mut interned.debug_annotation_names);
            let mut annotation = DebugAnnotation { name_iid: Some(iid), ..DebugAnnotation::default() };
            match value {
                Value::Int(value) => annotation.int_value = Some(value),
                Value::Float(value) => annotation.double_value = Some(value),
                Value::Text(value) => annotation.string_value = Some(value),
                Value::Json(value) => annotation.legacy_json_value = Some(value),
            }
            event.debug_annotations.push(annotation);
        }
        let interned = Some(interned).filter(|interned| *interned != InternedData::default());
        self.packet(TracePacket {
            timestamp: Some(ts),
            track_event: Some(event),
            interned_data: interned,
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, mut packet: TracePacket) -> Result<(), Error> {
        packet.trusted_packet_sequence_id = Some(1);
        packet.sequence_flags = Some(if std::mem::take(&mut self.begin_anew) { CLEARED } else { 0 } | NEEDS_STATE);
        // A trace is one message with a repeated field of packets, so it can be written packet by packet.
        encoding::message::encode(1, &packet, &mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.output.put(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<Written, Error> {
        self.flush()?;
        self.output.finish()
    }
}

/// The number of a text, from 1 on; a new one is added to what the packet explains.
fn number(texts: &mut Texts, text: &str, explained: &mut Vec<Interned>) -> u64 {
    let known = texts.len();
    let iid = u64::from(texts.intern(text)) + 1;
    if texts.len() > known {
        explained.push(Interned { iid: Some(iid), name: Some(text.to_owned()) });
    }
    iid
}
