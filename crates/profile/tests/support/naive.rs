//! The plainest reader of Kineto's JSON: whole files in memory, complete events only, no tolerance. The importer must come to the
//! same slices.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use trace::schema::{DevicePropertiesRow, DeviceRow, HostRow, RankRow, Table, TrackRow};
use trace::{Batch, Profile, Writer};

#[derive(Deserialize)]
struct File<'a> {
    #[serde(rename = "traceEvents", borrow)]
    events: Vec<Event<'a>>,
    #[serde(rename = "baseTimeNanoseconds", default)]
    base_ns: i64,
    #[serde(rename = "distributedInfo", default)]
    distributed: Option<Distributed>,
    #[serde(rename = "deviceProperties", default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Distributed {
    rank: i64,
    world_size: Option<i64>,
}

#[derive(Deserialize)]
struct Device {
    id: i64,
    name: String,
}

#[derive(Deserialize)]
struct Event<'a> {
    ph: String,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    cat: Option<String>,
    #[serde(borrow)]
    pid: Option<&'a RawValue>,
    #[serde(borrow)]
    tid: Option<&'a RawValue>,
    #[serde(borrow)]
    ts: Option<&'a RawValue>,
    #[serde(borrow)]
    dur: Option<&'a RawValue>,
    #[serde(borrow, default)]
    args: Fields<'a>,
}

/// An object's fields in their order.
#[derive(Default)]
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> serde::de::Visitor<'de> for Object {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'a> Fields<'a> {
    fn get(&self, keys: &[&str]) -> Option<&'a RawValue> {
        self.0.iter().find(|(key, _)| keys.contains(&key.as_str())).map(|(_, value)| *value)
    }

    fn int(&self, keys: &[&str]) -> Option<i64> {
        self.get(keys)?.get().trim_matches('"').parse().ok()
    }
}

fn text(value: Option<&RawValue>) -> String {
    value.map_or(String::new(), |value| value.get().trim_matches('"').to_owned())
}

/// µs as decimal text to ns; more than three digits after the point would be below a ns.
fn ns(us: &str) -> i64 {
    let (sign, us) = us.strip_prefix('-').map_or((1, us), |rest| (-1, rest));
    let (whole, fraction) = us.split_once('.').unwrap_or((us, ""));
    assert!(fraction.bytes().skip(3).all(|digit| digit == b'0'), "{us} µs is no whole ns");
    let fraction = format!("{fraction:0<3}");
    sign * (whole.parse::<i64>().unwrap() * 1_000 + fraction[..3].parse::<i64>().unwrap())
}

fn read(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return bytes;
    }
    let mut unpacked = Vec::new();
    flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
    unpacked
}

fn host_kind(category: &str) -> Option<&'static str> {
    Some(match category {
        "cpu_op" | "Operator" => "operator",
        "user_annotation" => "annotation",
        "cuda_runtime" | "Runtime" | "mtia_runtime" => "runtime",
        "cuda_driver" => "driver",
        "python_function" => "python",
        "overhead" => "overhead",
        "Trace" | "cuda_profiler_range" => "other",
        _ => return None,
    })
}

fn device_kind(category: &str, name: &str) -> Option<&'static str> {
    Some(match category {
        "kernel" | "Kernel" => "kernel",
        "gpu_memcpy" | "Memcpy" => "memcpy",
        "gpu_memset" | "Memset" => "memset",
        "cuda_sync" => "sync",
        "gpu_user_annotation" => "annotation",
        "mtia_ccp_events" if name.starts_with("event_") => "sync",
        "mtia_ccp_events" if name.starts_with("dma") => "memcpy",
        "mtia_ccp_events" => "other",
        _ => return None,
    })
}

/// Reads traces, one rank each, into a profile.
pub fn import(paths: &[PathBuf], out: &Path) -> Profile {
    let mut writer = Writer::create(out, "naive").unwrap();
    let mut batches: HashMap<Table, Batch> = Table::ALL.iter().map(|table| (*table, Batch::new(*table))).collect();
    let mut tracks: HashMap<(i64, String, String, String), i64> = HashMap::new();
    for path in paths {
        let bytes = read(path);
        let file: File<'_> =
            serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let rank = file.distributed.as_ref().map_or(0, |distributed| distributed.rank);
        let mut fine = false;
        for device in &file.devices {
            let row = DevicePropertiesRow {
                rank,
                device: device.id,
                name: &device.name,
                memory_bytes: None,
                multiprocessors: None,
                properties: None,
            };
            batches.get_mut(&Table::Devices).unwrap().push(&row);
        }
        for event in file.events.iter().filter(|event| event.ph == "X") {
            let category = event.cat.as_deref().unwrap_or_default();
            let (device_kind, host_kind) = (device_kind(category, &event.name), host_kind(category));
            assert!(device_kind.is_some() || host_kind.is_some(), "{}: category {category:?}", path.display());
            let (process, thread) = (text(event.pid), text(event.tid));
            let args = &event.args;
            let (ts, dur) = (ns(event.ts.unwrap().get()), ns(event.dur.unwrap().get()));
            fine |= ts % 1_000 != 0 || dur % 1_000 != 0;
            let flag = match (dur, ts, device_kind) {
                (..0, _, _) => Some("negative_duration"),
                (_, 0, Some(_)) => Some("lost_timestamp"),
                _ => None,
            };
            let ts = ts + file.base_ns;
            let stream =
                args.int(&["stream"]).or_else(|| thread.trim_start_matches("stream ").parse().ok()).unwrap_or(-1);
            let stream = if stream == i64::from(u32::MAX) { -1 } else { stream };
            let device = args.int(&["device"]).or_else(|| process.parse().ok()).unwrap_or(-1);
            let line = match device_kind {
                Some("annotation") => "annotations",
                Some(_) => "stream",
                None => "thread",
            };
            let next = tracks.len() as i64;
            let track = *tracks.entry((rank, line.into(), process.clone(), thread.clone())).or_insert_with(|| {
                let row = TrackRow {
                    rank,
                    track: next,
                    kind: if line == "thread" { "thread" } else { "stream" },
                    process: &process,
                    thread: &thread,
                    device: device_kind.map(|_| device),
                    stream: device_kind.map(|_| stream),
                    process_name: None,
                    thread_name: None,
                    label: None,
                    process_order: None,
                    thread_order: None,
                };
                batches.get_mut(&Table::Tracks).unwrap().push(&row);
                next
            });
            let texts = |key: &str| args.get(&[key]).map(|value| text(Some(value)));
            let (group, dtype) = (texts("Process Group Name"), texts("dtype"));
            // Old Kineto repeats the correlation here, which names no operator.
            let external_id =
                args.int(&["External id", "external id"]).filter(|id| Some(*id) != args.int(&["correlation"]));
            if let Some(kind) = device_kind {
                // What a wait is for, which the critical path needs.
                let fields: Vec<String> =
                    args.0.iter().map(|(key, value)| format!("\"{key}\":{}", value.get())).collect();
                let waits = (kind == "sync").then(|| format!("{{{}}}", fields.join(",")));
                let row = DeviceRow {
                    rank,
                    track,
                    device,
                    stream,
                    ts,
                    dur,
                    kind,
                    category: event.cat.as_deref(),
                    name: &event.name,
                    correlation: args.int(&["correlation"]),
                    external_id,
                    bytes: args.int(&["bytes"]),
                    bandwidth: args.get(&["memory bandwidth (GB/s)"]).and_then(|value| value.get().parse().ok()),
                    group: group.as_deref(),
                    sequence: args.int(&["Seq"]),
                    dtype: dtype.as_deref(),
                    flag,
                    args: waits.as_deref(),
                    ..DeviceRow::default()
                };
                batches.get_mut(&Table::Device).unwrap().push(&row);
            } else if let Some(kind) = host_kind {
                let inputs: Vec<String> = args
                    .0
                    .iter()
                    .filter(|(key, _)| {
                        ["Input Dims", "Input type", "Input Strides", "Concrete Inputs"].contains(&key.as_str())
                    })
                    .map(|(key, value)| format!("\"{key}\":{}", value.get()))
                    .collect();
                let inputs = (!inputs.is_empty()).then(|| format!("{{{}}}", inputs.join(",")));
                let row = HostRow {
                    rank,
                    track,
                    ts,
                    dur,
                    kind,
                    category: event.cat.as_deref(),
                    name: &event.name,
                    correlation: args.int(&["correlation"]),
                    external_id,
                    sequence: args.int(&["Sequence number"]),
                    forward_thread: args.int(&["Fwd thread id"]),
                    event_index: args.int(&["Ev Idx"]),
                    record_function: args.int(&["Record function id"]),
                    python_id: args.int(&["Python id"]),
                    python_parent: args.int(&["Python parent id"]),
                    python_module: args.int(&["Python module id"]),
                    flag,
                    inputs: inputs.as_deref(),
                    ..HostRow::default()
                };
                batches.get_mut(&Table::Host).unwrap().push(&row);
            }
        }
        let row = RankRow {
            rank,
            source: &path.file_name().unwrap().to_string_lossy(),
            rank_from: "distributedInfo",
            world_size: file.distributed.as_ref().and_then(|distributed| distributed.world_size),
            host: None,
            base_ns: file.base_ns,
            offset_ns: 0,
            residual_ns: None,
            matched_collectives: 0,
            matched_by: None,
            wall_offset_ns: Some(0),
            resolution_ns: if fine { 1 } else { 1_000 },
            first_ns: None,
            last_ns: None,
        };
        batches.get_mut(&Table::Ranks).unwrap().push(&row);
    }
    writer.write_all(batches.values()).unwrap();
    writer.finish().unwrap();
    Profile::open(out).unwrap()
}
