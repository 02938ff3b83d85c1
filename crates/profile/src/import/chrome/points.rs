//! Events without a duration to rows: arrows, counters, instants, memory, names.

use std::borrow::Cow;

use trace::schema::{CounterRow, FlowRow, InstantRow, MemoryRow};

use super::event::{Event, int_of, text_of};
use super::rest::Rest;
use super::rows::Rows;
use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::import::gather::{Naming, TrackKey, TrackKind};

/// JavaScript's integers are exact up to here.
const JS_EXACT: i64 = 1 << 53;

impl Rows<'_, '_> {
    pub(super) fn flow(&mut self, event: &Event<'_>, ts: i64, pid: &str, tid: &str) -> Result<(), Error> {
        let key = TrackKey { part: 0, kind: TrackKind::Other, process: pid, thread: tid };
        let track = self.gather.track(key, None, None)?;
        let id = event.id.and_then(int_of);
        if id.is_some_and(|id| !(-JS_EXACT..=JS_EXACT).contains(&id)) {
            self.gather.odd(Anomaly::LargeFlowId, || format!("id {}", id.unwrap_or_default()), None);
        }
        let id_text = if id.is_none() { event.id.map(text_of) } else { None };
        self.gather.push(&FlowRow {
            rank: 0,
            track,
            ts,
            id,
            id_text: id_text.as_deref(),
            phase: &event.ph.0,
            category: event.cat.as_ref().map(|cat| &*cat.0),
            name: &event.name.0,
            binding: event.bp.as_ref().map(|binding| &*binding.0),
        })
    }

    pub(super) fn counter(&mut self, event: &Event<'_>, ts: i64, pid: &str, text: &str, at: u64) -> Result<(), Error> {
        let key = TrackKey { part: 0, kind: TrackKind::Counter, process: pid, thread: &event.name.0 };
        let track = self.gather.track(key, None, None)?;
        let mut all = Rest::default();
        all.everything(&event.args);
        for (series, raw) in &all.fields {
            match text_of(raw).parse::<f64>() {
                Ok(value) if value.is_finite() => self.gather.push(&CounterRow {
                    rank: 0,
                    track,
                    ts,
                    name: &event.name.0,
                    series,
                    value,
                    unit: None,
                })?,
                _ => self.gather.odd(Anomaly::IgnoredField, || text, at),
            }
        }
        Ok(())
    }

    pub(super) fn instant(&mut self, event: &Event<'_>, ts: i64, pid: &str, tid: &str) -> Result<(), Error> {
        let key = TrackKey { part: 0, kind: TrackKind::Other, process: pid, thread: tid };
        let track = self.gather.track(key, None, None)?;
        if event.name.0 == "[memory]" && event.args.bytes.is_some() {
            return self.memory(event, ts, track);
        }
        let mut all = Rest::default();
        all.everything(&event.args);
        self.gather.push(&InstantRow {
            rank: 0,
            track,
            ts,
            name: &event.name.0,
            category: event.cat.as_ref().map(|cat| &*cat.0),
            scope: event.scope.as_ref().map(|scope| match &*scope.0 {
                "g" => "global",
                "p" => "process",
                _ => "thread",
            }),
            args: all.text(&mut self.rest),
        })
    }

    fn memory(&mut self, event: &Event<'_>, ts: i64, track: i64) -> Result<(), Error> {
        let mut rest = Rest::default();
        let named = |key: &str| event.args.rest.iter().find(|(name, _)| name == key).map(|(_, raw)| *raw);
        let mut row = MemoryRow {
            track,
            ts,
            name: &event.name.0,
            address: rest.int(named("Addr"), "Addr"),
            bytes: rest.int(event.args.bytes, "Bytes"),
            allocated: rest.int(named("Total Allocated"), "Total Allocated"),
            reserved: rest.int(named("Total Reserved"), "Total Reserved"),
            device_type: rest.int(named("Device Type"), "Device Type"),
            device: rest.int(named("Device Id"), "Device Id"),
            event_index: rest.int(event.args.event_index, "Ev Idx"),
            ..MemoryRow::default()
        };
        let known = ["Addr", "Total Allocated", "Total Reserved", "Device Type", "Device Id"];
        rest.fields.extend(event.args.rest.iter().filter(|(key, _)| !known.contains(&&**key)).cloned());
        row.args = rest.text(&mut self.rest);
        self.gather.push(&row)
    }

    pub(super) fn metadata(&mut self, event: &Event<'_>) -> Result<(), Error> {
        let pid = event.pid.map_or(Cow::Borrowed(""), text_of);
        let tid = event.tid.map_or(Cow::Borrowed(""), text_of);
        let arg = |key: &str| event.args.rest.iter().find(|(name, _)| name == key).map(|(_, raw)| *raw);
        let mut naming = Naming::default();
        let thread = match &*event.name.0 {
            "process_name" => {
                naming.name = arg("name").map(|raw| text_of(raw).into_owned());
                None
            }
            "process_labels" => {
                naming.label = arg("labels").map(|raw| text_of(raw).into_owned());
                None
            }
            "process_sort_index" => {
                naming.order = arg("sort_index").and_then(int_of);
                None
            }
            "thread_name" => {
                naming.name = arg("name").map(|raw| text_of(raw).into_owned());
                Some(&*tid)
            }
            "thread_sort_index" => {
                naming.order = arg("sort_index").and_then(int_of);
                Some(&*tid)
            }
            _ => return Ok(()),
        };
        self.gather.name(0, &pid, thread, naming)
    }
}
