//! Processes, threads and streams of a report: which rank each belongs to, and what they are called.

use rustc_hash::{FxHashMap, FxHashSet};

use super::sqlite::{Database, Strings};
use crate::import::Error;
use crate::import::gather::{Gather, Naming, TrackKey, TrackKind};

/// A report with more processes than this on devices is one rank.
const MAX_PARTS: usize = 4096;

/// The tables of device work, each with `globalPid` and `deviceId`.
pub(super) const DEVICE_TABLES: [&str; 4] = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
];

/// Where a process and a thread are in a serialised global id: 24 bits each, the thread in the lowest.
pub(super) fn process_of(global: i64) -> i64 {
    global >> 24 & 0xff_ffff
}

pub(super) fn thread_of(global: i64) -> i64 {
    global & 0xff_ffff
}

/// The global id of the process of a thread.
fn global_process(global: i64) -> i64 {
    global & !0xff_ffff
}

/// Processes and what is known of them.
pub(super) struct Places {
    /// The rank (part of the source) of every process that works on a device, if several do.
    parts: FxHashMap<i64, u32>,
    /// Devices of each part.
    pub devices: Vec<FxHashSet<i64>>,
    /// The device of each context of a process.
    context_devices: FxHashMap<(i64, i64), i64>,
    /// Names of processes and threads for the timeline.
    processes: FxHashMap<i64, String>,
    threads: FxHashMap<i64, String>,
    /// Ids as texts: a process id that two machines share is told apart by the rest of the global id.
    ids: FxHashMap<i64, i64>,
    /// The context that a stream's number was first seen in.
    contexts: FxHashMap<(u32, i64, i64), i64>,
    /// Kinds of streams, by process id, context and stream.
    streams: FxHashMap<(i64, i64, i64), i64>,
    named: FxHashSet<(u32, String, Option<String>)>,
}

impl Places {
    /// Finds the processes that work on devices: each is a rank if there are several, as `torchrun` and MPI start one for
    /// every device. One process, whatever number of devices it uses, is one rank.
    pub fn read(database: &Database, strings: &mut Strings<'_>, gather: &mut Gather<'_>) -> Result<Self, Error> {
        let mut used: FxHashMap<i64, FxHashSet<i64>> = FxHashMap::default();
        let mut context_devices = FxHashMap::default();
        for table in DEVICE_TABLES {
            database.scan(table, &["globalPid", "deviceId", "contextId"], |row| {
                let Some(process) = row.int(0, gather) else { return Ok(()) };
                let device = row.int(1, gather).unwrap_or(0);
                if let Some(context) = row.int(2, gather)
                    && context_devices.len() < 1 << 16
                {
                    context_devices.entry((global_process(process), context)).or_insert(device);
                }
                if used.len() <= MAX_PARTS {
                    let devices = used.entry(global_process(process)).or_default();
                    if devices.len() < 1 << 12 {
                        devices.insert(device);
                    }
                }
                Ok(())
            })?;
        }
        let mut order: Vec<(i64, i64)> =
            used.iter().map(|(&process, devices)| (devices.iter().copied().min().unwrap_or(0), process)).collect();
        order.sort_unstable();
        let mut places = Places {
            parts: FxHashMap::default(),
            devices: vec![used.values().flatten().copied().collect()],
            context_devices,
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            ids: FxHashMap::default(),
            contexts: FxHashMap::default(),
            streams: FxHashMap::default(),
            named: FxHashSet::default(),
        };
        if (2..=MAX_PARTS).contains(&order.len()) {
            places.devices = order.iter().map(|(_, process)| used[process].clone()).collect();
            places.parts = order.iter().enumerate().map(|(part, (_, process))| (*process, part as u32)).collect();
        }
        places.read_names(database, strings, gather)?;
        Ok(places)
    }

    fn read_names(
        &mut self,
        database: &Database,
        strings: &mut Strings<'_>,
        gather: &mut Gather<'_>,
    ) -> Result<(), Error> {
        const MAX: usize = 1 << 18;
        database.scan("PROCESSES", &["globalPid", "name"], |row| {
            if let (Some(process), Some(name)) = (row.int(0, gather), row.text(1, gather))
                && self.processes.len() < MAX
            {
                self.processes.insert(global_process(process), program(&name));
            }
            Ok(())
        })?;
        database.scan("ThreadNames", &["globalTid", "nameId"], |row| {
            let (thread, name) = (row.int(0, gather), row.int(1, gather));
            if let (Some(thread), Some(name)) = (thread, strings.get(name, gather)?)
                && self.threads.len() < MAX
            {
                self.threads.insert(thread, name.to_string());
            }
            Ok(())
        })?;
        let columns = ["processId", "contextId", "streamId", "flag"];
        database.scan("TARGET_INFO_CUDA_STREAM", &columns, |row| {
            let mut int = |at| row.int(at, gather);
            if let (Some(process), Some(context), Some(stream), Some(flag)) = (int(0), int(1), int(2), int(3))
                && self.streams.len() < MAX
            {
                self.streams.insert((process, context, stream), flag);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Ranks in the report.
    pub fn parts(&self) -> usize {
        self.devices.len()
    }

    /// The rank of a process; those that use no device are with the first.
    pub fn part(&self, global: Option<i64>) -> u32 {
        global.and_then(|global| self.parts.get(&global_process(global)).copied()).unwrap_or(0)
    }

    /// The device of a context, as its work says.
    pub fn device_of(&self, process: Option<i64>, context: i64) -> Option<i64> {
        self.context_devices.get(&(global_process(process?), context)).copied()
    }

    fn process_text(&mut self, global: i64) -> String {
        let (id, process) = (process_of(global), global_process(global));
        let first = *self.ids.entry(id).or_insert(process);
        if first == process { id.to_string() } else { format!("{id}@{:x}", process >> 48) }
    }

    /// The track of a thread; `line` sets apart what does not nest with calls.
    pub fn thread(&mut self, global: Option<i64>, line: &str, gather: &mut Gather<'_>) -> Result<(u32, i64), Error> {
        let part = self.part(global);
        let (process, thread) = match global {
            Some(global) => (self.process_text(global), format!("{}{line}", thread_of(global))),
            None => (String::new(), format!("unknown thread{line}")),
        };
        let kind = if line.is_empty() { TrackKind::Thread } else { TrackKind::Other };
        if let Some(global) = global {
            if self.named.insert((part, process.clone(), None)) {
                let name = self.processes.get(&global_process(global)).cloned();
                gather.name(part, &process, None, Naming { name, label: Some("CPU".into()), order: None })?;
            }
            if self.named.insert((part, process.clone(), Some(thread.clone()))) {
                let name = self.threads.get(&global).map(|name| format!("thread {} ({name}){line}", thread_of(global)));
                gather.name(part, &process, Some(&thread), Naming { name, ..Naming::default() })?;
            }
        }
        let track = gather.track(TrackKey { part, kind, process: &process, thread: &thread }, None, None)?;
        Ok((part, track))
    }

    /// The track of a stream. Streams are numbered within contexts: the same number in a second context of a process is
    /// another stream.
    pub fn stream(
        &mut self,
        global: Option<i64>,
        (device, context, stream): (i64, i64, i64),
        gather: &mut Gather<'_>,
    ) -> Result<(u32, i64), Error> {
        let part = self.part(global);
        let first = *self.contexts.entry((part, device, stream)).or_insert(context);
        let process = device.to_string();
        let thread = if first == context { stream.to_string() } else { format!("{stream} (context {context})") };
        if self.named.insert((part, process.clone(), Some(thread.clone()))) {
            let flag = self.streams.get(&(global.map_or(0, process_of), context, stream)).copied();
            let kind = match flag {
                Some(1) => " (default)",
                Some(3) => " (null)",
                _ => "",
            };
            let naming = Naming { name: Some(format!("stream {thread}{kind}")), order: Some(stream), label: None };
            gather.name(part, &process, Some(&thread), naming)?;
            if self.named.insert((part, process.clone(), None)) {
                let label = Some(format!("GPU {device}"));
                // Devices come after host processes.
                gather.name(part, &process, None, Naming { name: None, label, order: Some((1 << 24) + device) })?;
            }
        }
        let key = TrackKey { part, kind: TrackKind::Stream, process: &process, thread: &thread };
        let track = gather.track(key, Some(device), Some(stream))?;
        Ok((part, track))
    }
}

/// The name of a program without its folder and its arguments, which may carry secrets.
fn program(name: &str) -> String {
    let first = name.split_whitespace().next().unwrap_or("");
    first.rsplit(['/', '\\']).next().unwrap_or("").to_owned()
}

#[cfg(test)]
mod tests {
    use super::{process_of, program, thread_of};

    #[test]
    fn ids_and_programs_are_read_from_what_reports_say() {
        assert_eq!((process_of(281_476_838_981_743), thread_of(281_476_838_981_743)), (111, 111));
        assert_eq!(program("/usr/bin/python3 train.py --token=secret"), "python3");
        assert_eq!(program(""), "");
    }
}
