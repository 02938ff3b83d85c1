//! Rows of the tables of events, as events of Chrome JSON.

use trace::Batch;
use trace::schema::implied;

use super::File;
use super::names::Names;
use crate::export::Error;
use crate::export::rows::Values;
use crate::{DeviceKind, Flag, HostKind};

/// The open slices of the track whose slices come, by row: the Python frame around a slice is its parent where the column
/// `implied` says so.
#[derive(Default)]
pub(super) struct Frames {
    track: Option<i64>,
    ids: Vec<Option<i64>>,
}

impl Frames {
    /// The Python frame around the next slice, which is the frame `id` itself, if any.
    fn around(&mut self, track: i64, depth: i64, id: Option<i64>) -> Option<i64> {
        if self.track != Some(track) {
            self.track = Some(track);
            self.ids.clear();
        }
        self.ids.truncate(usize::try_from(depth).unwrap_or(0));
        let around = self.ids.iter().rev().flatten().next().copied();
        self.ids.push(id);
        around
    }
}

/// The category of a host slice: where the source has none, one that the importer knows as this kind.
fn host_category(kind: &str) -> Option<&'static str> {
    Some(match HostKind::of(kind) {
        HostKind::Operator => "cpu_op",
        HostKind::Runtime => "cuda_runtime",
        HostKind::Driver => "cuda_driver",
        HostKind::Annotation => "user_annotation",
        HostKind::Python => "python_function",
        HostKind::Sync => "sync",
        HostKind::Overhead => "overhead",
        HostKind::Span => "span",
        HostKind::Other => return None,
    })
}

/// The same for a slice of a device.
fn device_category(kind: &str) -> &'static str {
    match DeviceKind::of(kind) {
        DeviceKind::Kernel => "kernel",
        DeviceKind::Memcpy => "gpu_memcpy",
        DeviceKind::Memset => "gpu_memset",
        DeviceKind::Collective => "collective",
        DeviceKind::Sync => "cuda_sync",
        DeviceKind::Annotation => "gpu_user_annotation",
        DeviceKind::Other => "device",
    }
}

pub(super) fn host(batch: &Batch, names: &Names, file: &mut File) -> Result<(), Error> {
    let values = Values::new(batch);
    let (track, ts, dur) = (values.ints("track"), values.ints("ts"), values.ints("dur"));
    let (kind, category, name) = (values.texts("kind"), values.texts("category"), values.texts("name"));
    let (flag, flow, correlation) = (values.texts("flag"), values.ints("flow"), values.ints("correlation"));
    let (inputs, args) = (values.texts("inputs"), values.texts("args"));
    let numbers = [
        ("correlation", "correlation"),
        ("Record function id", "record_function"),
        ("Sequence number", "sequence"),
        ("Fwd thread id", "forward_thread"),
        ("Python id", "python_id"),
        ("Python module id", "python_module"),
        ("Ev Idx", "event_index"),
    ]
    .map(|(key, column)| (key, values.ints(column)));
    let (external_id, said) = (values.ints("external_id"), values.ints("implied"));
    let (depth, python_id, python_parent) =
        (values.ints("depth"), values.ints("python_id"), values.ints("python_parent"));
    for row in 0..batch.len() {
        let said = said.get(row).unwrap_or(0);
        let external_id =
            external_id.get(row).or(correlation.get(row).filter(|_| said & implied::SAME_AS_CORRELATION != 0));
        let around = file.frames.around(track.at(row), depth.at(row), python_id.get(row));
        let parent = python_parent.get(row).or(around.filter(|_| said & implied::ENCLOSING_FRAME != 0));
        let line = names.line(track.at(row));
        let unfinished = flag.get(row).map(Flag::of) == Some(Flag::Unfinished);
        file.events += 1;
        file.event(|event, base| {
            event.text("ph", if unfinished { "B" } else { "X" });
            if let Some(category) = category.get(row).or(host_category(kind.at(row))) {
                event.text("cat", category);
            }
            event.text("name", name.at(row));
            line.put(event);
            event.us("ts", i128::from(ts.at(row)) - base);
            if !unfinished {
                event.us("dur", dur.at(row).into());
            }
            event.object("args", |object| {
                object.int("External id", external_id);
                object.int("Python parent id", parent);
                for (key, numbers) in &numbers {
                    object.int(key, numbers.get(row));
                }
                object.members("inputs", inputs.get(row));
                object.members("args", args.get(row));
            });
        })?;
        file.launches(flow.get(row), correlation.get(row), &line, ts.at(row))?;
    }
    Ok(())
}

pub(super) fn device(batch: &Batch, names: &Names, file: &mut File) -> Result<(), Error> {
    let values = Values::new(batch);
    let (track, ts, dur) = (values.ints("track"), values.ints("ts"), values.ints("dur"));
    let (kind, category, name) = (values.texts("kind"), values.texts("category"), values.texts("name"));
    let (flag, flow, correlation) = (values.texts("flag"), values.ints("flow"), values.ints("correlation"));
    let (bandwidth, args) = (values.floats("bandwidth"), values.texts("args"));
    let (group, dtype) = (values.texts("group"), values.texts("dtype"));
    let numbers = [
        ("device", "device"),
        ("stream", "stream"),
        ("correlation", "correlation"),
        ("bytes", "bytes"),
        ("Seq", "sequence"),
    ]
    .map(|(key, column)| (key, values.ints(column)));
    let (external_id, said) = (values.ints("external_id"), values.ints("implied"));
    for row in 0..batch.len() {
        let said = said.get(row).unwrap_or(0);
        let external_id =
            external_id.get(row).or(correlation.get(row).filter(|_| said & implied::SAME_AS_CORRELATION != 0));
        let line = names.line(track.at(row));
        let lost = flag.get(row).map(Flag::of) == Some(Flag::LostTimestamp);
        file.events += 1;
        file.event(|event, base| {
            event.text("ph", "X");
            event.text("cat", category.get(row).unwrap_or(device_category(kind.at(row))));
            event.text("name", name.at(row));
            line.put(event);
            // A time that the profiler lost is written as it was: 0.
            event.us("ts", if lost { 0 } else { i128::from(ts.at(row)) - base });
            event.us("dur", dur.at(row).into());
            event.object("args", |object| {
                object.int("External id", external_id);
                for (key, numbers) in &numbers {
                    object.int(key, numbers.get(row));
                }
                object.float("memory bandwidth (GB/s)", bandwidth.at(row));
                if let Some(group) = group.get(row) {
                    object.text("Process Group Name", group);
                }
                if let Some(dtype) = dtype.get(row) {
                    object.text("dtype", dtype);
                }
                object.members("args", args.get(row));
            });
        })?;
        let start = if lost { file.base_ns as i64 } else { ts.at(row) };
        file.launches(flow.get(row), correlation.get(row), &line, start)?;
    }
    Ok(())
}

pub(super) fn memory(batch: &Batch, names: &Names, file: &mut File) -> Result<(), Error> {
    let values = Values::new(batch);
    let (track, ts) = (values.ints("track"), values.ints("ts"));
    let (name, args) = (values.texts("name"), values.texts("args"));
    let numbers = [
        ("Total Reserved", "reserved"),
        ("Total Allocated", "allocated"),
        ("Bytes", "bytes"),
        ("Addr", "address"),
        ("Device Id", "device"),
        ("Device Type", "device_type"),
        ("Ev Idx", "event_index"),
    ]
    .map(|(key, column)| (key, values.ints(column)));
    for row in 0..batch.len() {
        let line = names.line(track.at(row));
        file.events += 1;
        file.event(|event, base| {
            event.text("ph", "i");
            event.text("cat", "cpu_instant_event");
            event.text("s", "t");
            event.text("name", "[memory]");
            line.put(event);
            event.us("ts", i128::from(ts.at(row)) - base);
            event.object("args", |object| {
                for (key, numbers) in &numbers {
                    object.int(key, numbers.get(row));
                }
                // Readers know memory by the name `[memory]`; what a source calls it otherwise is kept beside.
                if name.at(row) != "[memory]" {
                    object.text("Name", name.at(row));
                }
                object.members("args", args.get(row));
            });
        })?;
    }
    Ok(())
}

pub(super) fn counters(batch: &Batch, names: &Names, file: &mut File) -> Result<(), Error> {
    let values = Values::new(batch);
    let (track, ts, value) = (values.ints("track"), values.ints("ts"), values.floats("value"));
    let (name, series) = (values.texts("name"), values.texts("series"));
    for row in 0..batch.len() {
        let line = names.line(track.at(row));
        file.events += 1;
        file.event(|event, base| {
            event.text("ph", "C");
            event.text("name", name.at(row));
            event.id("pid", line.process);
            event.us("ts", i128::from(ts.at(row)) - base);
            event.object("args", |object| object.float(series.at(row), value.at(row)));
        })?;
    }
    Ok(())
}

pub(super) fn instants(batch: &Batch, names: &Names, file: &mut File) -> Result<(), Error> {
    let values = Values::new(batch);
    let (track, ts, name) = (values.ints("track"), values.ints("ts"), values.texts("name"));
    let (category, scope, args) = (values.texts("category"), values.texts("scope"), values.texts("args"));
    for row in 0..batch.len() {
        let line = names.line(track.at(row));
        file.events += 1;
        file.event(|event, base| {
            event.text("ph", "i");
            if let Some(category) = category.get(row) {
                event.text("cat", category);
            }
            if let Some(scope) = scope.get(row) {
                event.text(
                    "s",
                    match scope {
                        "global" => "g",
                        "process" => "p",
                        _ => "t",
                    },
                );
            }
            event.text("name", name.at(row));
            line.put(event);
            event.us("ts", i128::from(ts.at(row)) - base);
            event.object("args", |object| object.members("args", args.get(row)));
        })?;
    }
    Ok(())
}

pub(super) fn flows(batch: &Batch, names: &Names, file: &mut File) -> Result<(), Error> {
    let values = Values::new(batch);
    let (track, ts, id) = (values.ints("track"), values.ints("ts"), values.ints("id"));
    let (id_text, phase) = (values.texts("id_text"), values.texts("phase"));
    let (category, name, binding) = (values.texts("category"), values.texts("name"), values.texts("binding"));
    for row in 0..batch.len() {
        let line = names.line(track.at(row));
        file.events += 1;
        file.event(|event, base| {
            event.text("ph", phase.at(row));
            event.int("id", id.get(row));
            if let Some(id) = id_text.get(row) {
                event.text("id", id);
            }
            line.put(event);
            event.us("ts", i128::from(ts.at(row)) - base);
            if let Some(category) = category.get(row) {
                event.text("cat", category);
            }
            event.text("name", name.at(row));
            if let Some(binding) = binding.get(row) {
                event.text("bp", binding);
            }
        })?;
    }
    Ok(())
}
