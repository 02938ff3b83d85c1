//! What ran on devices: kernels, copies, fills, graphs, and waiting for streams and events.

use trace::schema::{DeviceRow, FlowRow, MemoryRow};

use super::Report;
use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::json::Object;

/// The columns that every table of device work has.
const COMMON: [&str; 8] =
    ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId"];

/// What a row of any such table says.
struct Work {
    start: i64,
    end: i64,
    device: i64,
    context: i64,
    stream: i64,
    correlation: Option<i64>,
    process: Option<i64>,
    graph_node: Option<i64>,
}

/// What its own table adds.
struct What<'w> {
    kind: &'static str,
    name: &'w str,
    bytes: Option<i64>,
}

impl Report<'_, '_, '_> {
    /// Reads all tables of device work.
    pub(super) fn device(&mut self) -> Result<(), Error> {
        self.kernels()?;
        self.copies()?;
        self.fills()?;
        self.graphs()?;
        self.waits()?;
        self.memory()
    }

    fn columns<'c>(own: &[&'c str]) -> Vec<&'c str> {
        COMMON.iter().chain(own).copied().collect()
    }

    fn kernels(&mut self) -> Result<(), Error> {
        let own = [
            "demangledName",
            "shortName",
            "mangledName",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
            "registersPerThread",
            "staticSharedMemory",
            "dynamicSharedMemory",
            "graphId",
            "clusterX",
            "clusterY",
            "clusterZ",
        ];
        self.events += self.database.scan("CUPTI_ACTIVITY_KIND_KERNEL", &Self::columns(&own), |row| {
            let Some(work) = self.sink.work(row)? else { return Ok(()) };
            let mut name = None;
            for at in 8..11 {
                let id = row.int(at, self.sink.gather);
                name = name.or(self.strings.get(id, self.sink.gather)?);
            }
            let numbers: Vec<Option<i64>> = (11..24).map(|at| row.int(at, self.sink.gather)).collect();
            let [grid, block, cluster] = [0, 3, 10].map(|at| triple(&numbers[at..at + 3]));
            let shared = numbers[7].unwrap_or(0).saturating_add(numbers[8].unwrap_or(0));
            self.sink.push(
                &work,
                &What { kind: "kernel", name: name.as_deref().unwrap_or("unknown kernel"), bytes: None },
                |args| {
                    args.int("registers per thread", numbers[6]);
                    args.int("shared memory", shared);
                    for (key, triple) in [("grid", grid), ("block", block), ("cluster", cluster)] {
                        if let Some(triple) = triple {
                            args.raw(key, &triple);
                        }
                    }
                    args.int("graph id", numbers[9]);
                },
            )
        })?;
        Ok(())
    }

    fn copies(&mut self) -> Result<(), Error> {
        let own = ["bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId"];
        self.events += self.database.scan("CUPTI_ACTIVITY_KIND_MEMCPY", &Self::columns(&own), |row| {
            let Some(work) = self.sink.work(row)? else { return Ok(()) };
            let mut int = |at| row.int(at, self.sink.gather);
            let (bytes, copy, from, to) = (int(8), int(9).unwrap_or(0), int(10), int(11));
            let (from_device, to_device) = (int(12), int(13));
            let name = copy_name(copy, from, to);
            self.sink.push(&work, &What { kind: "memcpy", name: &name, bytes }, |args| {
                args.int("source device", from_device);
                args.int("destination device", to_device);
            })
        })?;
        Ok(())
    }

    fn fills(&mut self) -> Result<(), Error> {
        let own = ["bytes", "value", "memKind"];
        self.events += self.database.scan("CUPTI_ACTIVITY_KIND_MEMSET", &Self::columns(&own), |row| {
            let Some(work) = self.sink.work(row)? else { return Ok(()) };
            let mut int = |at| row.int(at, self.sink.gather);
            let (bytes, value, memory) = (int(8), int(9), int(10));
            let name = format!("Memset ({})", memory.map_or("Unknown", memory_kind));
            self.sink.push(&work, &What { kind: "memset", name: &name, bytes }, |args| args.int("value", value))
        })?;
        Ok(())
    }

    /// Whole graphs, as the profiler records them unless it is told to record their nodes.
    fn graphs(&mut self) -> Result<(), Error> {
        let own = ["graphId", "graphExecId"];
        self.events += self.database.scan("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", &Self::columns(&own), |row| {
            let Some(work) = self.sink.work(row)? else { return Ok(()) };
            let (graph, exec) = (row.int(8, self.sink.gather), row.int(9, self.sink.gather));
            let name = graph.map_or("CUDA graph".to_owned(), |graph| format!("CUDA graph {graph}"));
            self.sink.push(&work, &What { kind: "kernel", name: &name, bytes: None }, |args| {
                args.int("graph id", graph);
                args.int("graph exec id", exec);
            })
        })?;
        Ok(())
    }

    fn waits(&mut self) -> Result<(), Error> {
        let own = ["syncType", "eventId", "eventSyncId"];
        self.events += self.database.scan("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", &Self::columns(&own), |row| {
            let Some(mut work) = self.sink.work(row)? else { return Ok(()) };
            // These rows say device 0 whatever the device is.
            work.device = self.sink.places.device_of(work.process, work.context).unwrap_or(work.device);
            let mut int = |at| row.int(at, self.sink.gather);
            let (kind, event, event_sync) = (int(8), int(9), int(10));
            let name = match kind {
                Some(1) => "Event Sync",
                Some(2) => "Stream Wait Event",
                Some(3) => "Stream Sync",
                Some(4) => "Context Sync",
                _ => "Sync",
            };
            self.sink.push(&work, &What { kind: "sync", name, bytes: None }, |args| {
                args.int("event id", event);
                args.int("event sync id", event_sync);
            })
        })?;
        Ok(())
    }

    /// Allocations and frees of device memory.
    fn memory(&mut self) -> Result<(), Error> {
        let columns =
            ["start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType", "correlationId"];
        self.events += self.database.scan("CUDA_GPU_MEMORY_USAGE_EVENTS", &columns, |row| {
            let mut int = |at| row.int(at, self.sink.gather);
            let (start, process, device, address) = (int(0), int(1), int(2), int(3));
            let (bytes, memory, operation, correlation) = (int(4), int(5), int(6), int(7));
            let Some(ts) = start else { return self.sink.no_time("CUDA_GPU_MEMORY_USAGE_EVENTS") };
            let (name, bytes) = match operation {
                Some(0) => ("alloc", bytes),
                Some(1) => ("free", bytes.map(|bytes| -bytes)),
                _ => ("other", bytes),
            };
            let (part, track) = self.sink.places.thread(process, " memory", self.sink.gather)?;
            let args = self.sink.args(|args| {
                args.text("memory", memory.map_or("Unknown", memory_kind));
                args.int("correlation", correlation);
            });
            self.sink.gather.push(&MemoryRow {
                rank: part.into(),
                track,
                ts,
                name,
                address,
                bytes,
                device_type: Some(1),
                device,
                args: args.as_deref(),
                ..MemoryRow::default()
            })
        })?;
        Ok(())
    }
}

impl super::Sink<'_, '_> {
    /// What the common columns say; without times the row is skipped.
    fn work(&mut self, row: &super::sqlite::Values<'_, '_>) -> Result<Option<Work>, Error> {
        let mut int = |at| row.int(at, self.gather);
        let (start, end) = (int(0), int(1));
        let work = Work {
            start: start.unwrap_or(0),
            end: end.or(start).unwrap_or(0),
            device: int(2).unwrap_or(-1),
            context: int(3).unwrap_or(-1),
            // An unsigned -1 stands for all streams of a context.
            stream: int(4).filter(|&stream| stream != i64::from(u32::MAX)).unwrap_or(-1),
            correlation: int(5).filter(|&correlation| correlation != 0),
            process: int(6),
            graph_node: int(7),
        };
        if start.is_none() {
            self.no_time("device work")?;
            return Ok(None);
        }
        Ok(Some(work))
    }

    fn push(&mut self, work: &Work, what: &What<'_>, own: impl FnOnce(&mut Object<'_>)) -> Result<(), Error> {
        let (part, track) = self.places.stream(work.process, (work.device, work.context, work.stream), self.gather)?;
        let Some(dur) = work.end.checked_sub(work.start).filter(|&dur| dur != i64::MIN) else {
            self.gather.odd(Anomaly::TimeOutOfRange, || format!("{} from {}", what.name, work.start), None);
            return Ok(());
        };
        let flag = if dur < 0 {
            self.gather.odd(
                Anomaly::NegativeDuration,
                || format!("{} from {} to {}", what.name, work.start, work.end),
                None,
            );
            Some("negative_duration")
        } else if work.start == 0 && work.end == 0 {
            self.gather.odd(Anomaly::LostTimestamp, || what.name, None);
            Some("lost_timestamp")
        } else {
            if dur == 0 {
                self.gather.odd(Anomaly::ZeroDuration, || format!("{} at {}", what.name, work.start), None);
            }
            None
        };
        let args = self.args(|args| {
            args.int("context", work.context);
            own(args);
            args.int("graph node id", work.graph_node);
        });
        if let Some(id) = work.correlation.filter(|_| flag.is_none()) {
            self.launch_arrow(part, track, work.start, id, "f")?;
        }
        self.gather.push_device(&DeviceRow {
            rank: part.into(),
            track,
            device: work.device,
            stream: work.stream,
            ts: work.start,
            dur,
            kind: what.kind,
            name: what.name,
            correlation: work.correlation,
            bytes: what.bytes,
            flag,
            args: args.as_deref(),
            ..DeviceRow::default()
        })
    }

    /// An end of the arrow from a launch to what it started, in the words of Kineto.
    pub(super) fn launch_arrow(&mut self, part: u32, track: i64, ts: i64, id: i64, phase: &str) -> Result<(), Error> {
        self.gather.push(&FlowRow {
            rank: part.into(),
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

/// `[x, y, z]`, where all are there.
fn triple(values: &[Option<i64>]) -> Option<String> {
    match values {
        [Some(x), Some(y), Some(z)] => Some(format!("[{x}, {y}, {z}]")),
        _ => None,
    }
}

/// The name that Kineto gives a copy: `Memcpy HtoD (Pageable -> Device)`.
fn copy_name(copy: i64, from: Option<i64>, to: Option<i64>) -> String {
    let direction = match copy {
        1 | 11 => "HtoD",
        2 | 12 => "DtoH",
        3 => "HtoA",
        4 => "AtoH",
        5 => "AtoA",
        6 => "AtoD",
        7 => "DtoA",
        8 | 13 => "DtoD",
        9 => "HtoH",
        10 => "PtoP",
        _ => "Unknown",
    };
    match (from, to) {
        (Some(from), Some(to)) => format!("Memcpy {direction} ({} -> {})", memory_kind(from), memory_kind(to)),
        // Migrations of unified memory state no kinds.
        _ if (11..=13).contains(&copy) => format!("Memcpy {direction} (Unified)"),
        _ => format!("Memcpy {direction}"),
    }
}

/// `ENUM_CUDA_MEM_KIND` in Kineto's words.
fn memory_kind(kind: i64) -> &'static str {
    match kind {
        0 => "Pageable",
        1 => "Pinned",
        2 => "Device",
        3 => "Array",
        4 => "Managed",
        5 => "Device Static",
        6 => "Managed Static",
        _ => "Unknown",
    }
}
