//! Chrome JSON as Kineto writes it: what PyTorch's tools, Chrome and Perfetto read, and what the importer reads back.
//!
//! Times are microseconds with three decimals, relative to `baseTimeNanoseconds`. Arrows from launches to what they started
//! are made again of the column `flow`. Clocks stay those of the ranks: alignment is the reader's.

use std::borrow::Cow;
use std::path::Path;

use trace::schema::{Table, flow};
use trace::{Batch, Filter, NO_INT, Profile};

use super::output::{Output, directory};
use super::rows::Values;
use super::{Error, Summary};
use crate::json::{self, Object};

mod events;
mod names;

use events::{Frames, counters, device, flows, host, instants, memory};
use names::Names;

/// Bytes of events gathered before they are packed and written.
const BUFFER_BYTES: usize = 1 << 18;

pub(super) fn export(profile: &Profile, out: &Path, overwrite: bool) -> Result<Summary, Error> {
    let ranks = ranks(profile)?;
    let mut summary = Summary::default();
    match &ranks[..] {
        [] => return Err(Error::NoRanks { path: profile.path().to_owned() }),
        [only] => one_rank(profile, only, Output::create(out, overwrite)?, &mut summary)?,
        several => {
            directory(out, overwrite)?;
            for rank in several {
                let path = out.join(format!("rank{}.json.gz", rank.rank));
                one_rank(profile, rank, Output::create(&path, overwrite)?, &mut summary)?;
            }
        }
    }
    Ok(summary)
}

/// A rank and the base of its times.
struct Rank {
    rank: i64,
    base_ns: i64,
    world_size: Option<i64>,
    host: Option<String>,
}

fn ranks(profile: &Profile) -> Result<Vec<Rank>, Error> {
    let rows = profile.read(Table::Ranks, &["rank", "base_ns", "world_size", "host"])?;
    let (rank, base, world) = (rows.ints("rank"), rows.ints("base_ns"), rows.ints("world_size"));
    let host = Values::new(&rows).texts("host");
    let mut ranks: Vec<Rank> = Vec::new();
    for row in 0..rows.len() {
        let world_size = Some(world[row]).filter(|&size| size != NO_INT);
        let new = Rank { rank: rank[row], base_ns: base[row], world_size, host: host.get(row).map(str::to_owned) };
        // A recording may state a rank again: the last word counts.
        match ranks.iter_mut().find(|known| known.rank == new.rank) {
            Some(known) => *known = new,
            None => ranks.push(new),
        }
    }
    ranks.sort_by_key(|rank| rank.rank);
    Ok(ranks)
}

fn one_rank(profile: &Profile, rank: &Rank, output: Output, summary: &mut Summary) -> Result<(), Error> {
    let mut file = File {
        output,
        buffer: Vec::new(),
        any: false,
        events: 0,
        base_ns: rank.base_ns.into(),
        frames: Frames::default(),
    };
    file.head(profile, rank)?;
    let names = Names::read(profile, rank.rank)?;
    names.write(&mut file)?;
    let filter = Filter { rank: Some(rank.rank), ..Filter::default() };
    for (table, each) in [
        (Table::Host, host as fn(&Batch, &Names, &mut File) -> Result<(), Error>),
        (Table::Device, device),
        (Table::Memory, memory),
        (Table::Counters, counters),
        (Table::Instants, instants),
        (Table::Flows, flows),
    ] {
        let columns: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
        for batch in profile.chunks(table, &columns, filter)? {
            each(&batch?, &names, &mut file)?;
        }
    }
    file.buffer.extend_from_slice(b"\n  ]\n}\n");
    file.flush()?;
    summary.events += file.events;
    summary.files.push(file.output.finish()?);
    Ok(())
}

/// A file of one rank.
struct File {
    output: Output,
    buffer: Vec<u8>,
    any: bool,
    events: u64,
    base_ns: i128,
    frames: Frames,
}

impl File {
    /// Everything before the events.
    fn head(&mut self, profile: &Profile, rank: &Rank) -> Result<(), Error> {
        self.buffer.extend_from_slice(b"{\n");
        let mut distributed = serde_json::Map::new();
        let (mut any_schema, mut any_host) = (false, false);
        let filter = Filter { rank: Some(rank.rank), ..Filter::default() };
        for batch in profile.chunks(Table::Metadata, &["key", "value"], filter)? {
            let batch = batch?;
            let values = Values::new(&batch);
            let (key, value) = (values.texts("key"), values.texts("value"));
            for row in 0..batch.len() {
                match key.at(row) {
                    "distributedInfo" => distributed = serde_json::from_str(value.at(row)).unwrap_or_default(),
                    "traceEvents" | "deviceProperties" | "baseTimeNanoseconds" => {}
                    key => {
                        any_schema |= key == "schemaVersion";
                        any_host |= matches!(key, "host_name" | "hostname");
                        self.top(key, value.at(row));
                    }
                }
            }
        }
        if !any_schema {
            self.top("schemaVersion", "1");
        }
        if let Some(host) = rank.host.as_deref().filter(|_| !any_host) {
            self.top("host_name", &serde_json::Value::from(host).to_string());
        }
        distributed.insert("rank".into(), rank.rank.into());
        if let Some(size) = rank.world_size {
            distributed.insert("world_size".into(), size.into());
        }
        self.top("distributedInfo", &serde_json::Value::Object(distributed).to_string());
        let devices = device_properties(profile, filter)?;
        if !devices.is_empty() {
            self.top("deviceProperties", &format!("[{}]", devices.join(", ")));
        }
        if rank.base_ns != 0 {
            self.top("baseTimeNanoseconds", &rank.base_ns.to_string());
        }
        self.buffer.extend_from_slice(b"  \"traceEvents\": [");
        Ok(())
    }

    /// A member of the file's object, followed by others.
    fn top(&mut self, key: &str, value: &str) {
        let value = if json::is_json(value) { value.to_owned() } else { serde_json::Value::from(value).to_string() };
        let key = serde_json::Value::from(key).to_string();
        self.buffer.extend_from_slice(format!("  {key}: {value},\n").as_bytes());
    }

    /// An event, made by `fill`.
    fn event(&mut self, fill: impl FnOnce(&mut Object<'_>, i128)) -> Result<(), Error> {
        self.buffer.extend_from_slice(if std::mem::replace(&mut self.any, true) { b",\n  " } else { b"\n  " });
        let mut object = Object::open(&mut self.buffer);
        fill(&mut object, self.base_ns);
        object.close();
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.output.put(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// An end of an arrow between a launch and what it started.
    fn launch(
        &mut self,
        phase: &str,
        (category, name): (&str, &str),
        id: i64,
        line: &Line<'_>,
        ts: i64,
    ) -> Result<(), Error> {
        self.event(|event, base| {
            event.text("ph", phase);
            event.int("id", id);
            line.put(event);
            event.us("ts", i128::from(ts) - base);
            event.text("cat", category);
            event.text("name", name);
            if phase == "f" {
                event.text("bp", "e");
            }
        })
    }

    /// Both ends that a slice may be.
    fn launches(&mut self, flow: Option<i64>, id: Option<i64>, line: &Line<'_>, ts: i64) -> Result<(), Error> {
        let (Some(flow), Some(id)) = (flow, id) else { return Ok(()) };
        let ends = flow & (flow::STARTS | flow::ENDS);
        let label = flow::LABELS.iter().find(|label| label.0 == flow - ends).unwrap_or(&flow::LABELS[0]);
        if ends & flow::STARTS != 0 {
            self.launch("s", (label.1, label.2), id, line, ts)?;
        }
        if ends & flow::ENDS != 0 {
            self.launch("f", (label.1, label.2), id, line, ts)?;
        }
        Ok(())
    }
}

/// Process and thread of an event.
struct Line<'n> {
    process: &'n str,
    thread: Cow<'n, str>,
}

impl Line<'_> {
    fn put(&self, event: &mut Object<'_>) {
        event.id("pid", self.process);
        event.id("tid", &self.thread);
    }
}

/// What the source says of its devices, each a JSON object in Kineto's words.
fn device_properties(profile: &Profile, filter: Filter) -> Result<Vec<String>, Error> {
    let columns = ["device", "name", "memory_bytes", "multiprocessors", "properties"];
    let batch = profile.read_where(Table::Devices, &columns, filter)?;
    let values = Values::new(&batch);
    let (device, memory) = (values.ints("device"), values.ints("memory_bytes"));
    let (multiprocessors, name) = (values.ints("multiprocessors"), values.texts("name"));
    let properties = values.texts("properties");
    let mut all = Vec::new();
    for row in 0..batch.len() {
        let text = properties.at(row);
        let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
        let known = object.len();
        // What Kineto calls otherwise than the source, and what has columns only.
        object.entry("id").or_insert_with(|| device.at(row).into());
        object.entry("name").or_insert_with(|| name.at(row).into());
        for (key, value) in [("totalGlobalMem", memory.get(row)), ("numSms", multiprocessors.get(row))] {
            if let Some(value) = value {
                object.entry(key).or_insert_with(|| value.into());
            }
        }
        all.push(if object.len() == known { text.to_owned() } else { serde_json::Value::Object(object).to_string() });
    }
    Ok(all)
}
