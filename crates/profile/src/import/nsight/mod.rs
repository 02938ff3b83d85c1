//! Nsight Systems reports, exported to SQLite (`nsys export --type sqlite`), schema 3.11 and later.
//!
//! Every table is optional. Processes that work on devices are ranks if there are several. What reports hold besides times and
//! names, the environment of the profiled process first of all, is never read.

mod device;
mod host;
mod names;
mod sqlite;

use std::path::Path;

use names::Places;
use sqlite::{Database, Strings};

use super::diagnostics::Anomaly;
use super::gather::{Gather, Shared};
use super::{DeviceFacts, Error, PartFacts, SourceFacts};
use crate::json::Object;

/// The oldest schema that is read.
const OLDEST: (u32, u32) = (3, 11);

/// Tables whose absence is worth a word.
const EXPECTED: [&str; 9] = [
    "StringIds",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_GPU",
    "ThreadNames",
    "PROCESSES",
];

/// Tables with the environment, the command line or the files of the profiled process. They are counted and not read.
const SECRET: [&str; 4] = ["TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE", "ProcessStreams", "ANALYSIS_FILE"];

/// What is copied from `META_DATA_EXPORT`, whose other rows hold users, hosts and paths.
const METADATA: [&str; 6] = [
    "EXPORT_PRODUCT_NAME",
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_SCHEMA_VERSION",
    "EXPORT_PLATFORM",
    "EXPORT_ARCH",
    "EXPORT_PARAM_TIME_SHIFT",
];

/// A report being read.
struct Report<'d, 'g, 's> {
    database: &'d Database,
    strings: Strings<'d>,
    sink: Sink<'g, 's>,
    events: u64,
}

/// Where its rows go.
struct Sink<'g, 's> {
    gather: &'g mut Gather<'s>,
    places: Places,
    buffer: Vec<u8>,
}

/// Reads a report into `shared` as this source.
pub(super) fn read(path: &Path, shared: &Shared, source: u32) -> Result<SourceFacts, Error> {
    let mut gather = Gather::new(shared, source);
    let facts = fill(path, &mut gather)?;
    gather.finish()?;
    Ok(facts)
}

fn fill(path: &Path, gather: &mut Gather<'_>) -> Result<SourceFacts, Error> {
    let database = Database::open(path)?;
    let mut facts = SourceFacts { resolution_ns: 1, bytes: database.bytes, ..SourceFacts::default() };
    facts.metadata = metadata(&database, path, gather)?;
    for table in EXPECTED {
        if !database.has(table) {
            gather.odd(Anomaly::MissingTable, || table, None);
        }
    }
    if database.beginning("NVTX_EVENTS").is_empty() {
        gather.odd(Anomaly::MissingTable, || "NVTX_EVENTS", None);
    }
    for table in SECRET {
        if database.has(table) {
            gather.odd(Anomaly::SecretsSkipped, || table, None);
        }
    }
    base(&database, &mut facts, gather)?;
    let mut strings = database.strings()?;
    let places = Places::read(&database, &mut strings, gather)?;
    facts.parts = parts(&database, &places, gather)?;
    let mut report =
        Report { database: &database, strings, sink: Sink { gather, places, buffer: Vec::new() }, events: 0 };
    report.device()?;
    report.host()?;
    facts.events = report.events;
    if facts.events == 0 {
        gather.odd(Anomaly::EmptyTrace, || "no table with events", None);
    }
    Ok(facts)
}

/// Checks that the file is a report of a version that is read, and says which.
fn metadata(database: &Database, path: &Path, gather: &mut Gather<'_>) -> Result<Vec<(String, String)>, Error> {
    let mut found: Vec<(String, String)> = Vec::new();
    database.scan("META_DATA_EXPORT", &["name", "value"], |row| {
        if let (Some(name), Some(value)) = (row.text(0, gather), row.text(1, gather))
            && METADATA.contains(&name.as_str())
            && found.iter().all(|(known, _)| *known != name)
        {
            found.push((name, value));
        }
        Ok(())
    })?;
    let Some((_, version)) = found.iter().find(|(name, _)| name == "EXPORT_SCHEMA_VERSION") else {
        return Err(Error::format(
            path,
            "a SQLite file, but no export of Nsight Systems: META_DATA_EXPORT states no EXPORT_SCHEMA_VERSION",
        ));
    };
    let mut numbers = version.split('.').map(|number| number.parse::<u32>());
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(Error::format(path, format!("EXPORT_SCHEMA_VERSION {version:?} is no version")));
    };
    if (major, minor) < OLDEST {
        let (major, minor) = OLDEST;
        let reason =
            format!("schema {version} is older than {major}.{minor}: export the report with a newer Nsight Systems");
        return Err(Error::format(path, reason));
    }
    Ok(found.into_iter().map(|(name, value)| (name, serde_json::Value::from(value).to_string())).collect())
}

/// Where the report's clock stands in UTC: at the start of the session both are stated.
fn base(database: &Database, facts: &mut SourceFacts, gather: &mut Gather<'_>) -> Result<(), Error> {
    let (mut utc, mut start) = (None, None);
    database.scan("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], |row| {
        utc = utc.or(row.int(0, gather));
        Ok(())
    })?;
    database.scan("ANALYSIS_DETAILS", &["startTime"], |row| {
        start = start.or(row.int(0, gather));
        Ok(())
    })?;
    if let Some(utc) = utc {
        facts.base_ns = utc.saturating_sub(start.unwrap_or(0));
        facts.wall_offset_ns = Some(0);
    }
    Ok(())
}

/// The ranks, and the devices of each.
fn parts(database: &Database, places: &Places, gather: &mut Gather<'_>) -> Result<Vec<PartFacts>, Error> {
    const MAX_DEVICES: usize = 4096;
    let columns = [
        "id",
        "name",
        "totalMemory",
        "smCount",
        "memoryBandwidth",
        "clockRate",
        "chipName",
        "l2CacheSize",
        "busLocation",
    ];
    let mut devices: Vec<DeviceFacts> = Vec::new();
    database.scan("TARGET_INFO_GPU", &columns, |row| {
        let mut int = |at| row.int(at, gather);
        let (id, memory, multiprocessors) = (int(0), int(2), int(3));
        let numbers = [("memoryBandwidth", int(4)), ("clockRate", int(5)), ("l2CacheSize", int(7))];
        let texts = [("chipName", row.text(6, gather)), ("busLocation", row.text(8, gather))];
        let name = row.text(1, gather).unwrap_or_default();
        if let Some(device) = id
            && devices.len() < MAX_DEVICES
        {
            let mut properties = Vec::new();
            let mut object = Object::open(&mut properties);
            object.int("id", device);
            object.text("name", &name);
            object.int("totalGlobalMem", memory);
            object.int("numSms", multiprocessors);
            numbers.iter().for_each(|(key, value)| object.int(key, *value));
            texts.iter().for_each(|(key, value)| {
                if let Some(value) = value {
                    object.text(key, value);
                }
            });
            object.close();
            devices.push(DeviceFacts {
                device,
                name,
                memory_bytes: memory,
                multiprocessors,
                properties: String::from_utf8(properties).ok(),
            });
        }
        Ok(())
    })?;
    let several = places.parts() > 1;
    let part = |(number, used): (usize, &rustc_hash::FxHashSet<i64>)| PartFacts {
        rank: several.then_some((number as i64, "device")),
        world_size: None,
        host: None,
        devices: devices.iter().filter(|device| !several || used.contains(&device.device)).cloned().collect(),
    };
    Ok(places.devices.iter().enumerate().map(part).collect())
}

impl Sink<'_, '_> {
    /// An object of arguments as text; none when it is empty.
    fn args(&mut self, fill: impl FnOnce(&mut Object<'_>)) -> Option<String> {
        self.buffer.clear();
        let mut object = Object::open(&mut self.buffer);
        fill(&mut object);
        let any = object.any();
        object.close();
        any.then(|| String::from_utf8_lossy(&self.buffer).into_owned())
    }

    /// Counts a row without times, which is skipped.
    fn no_time(&mut self, what: &str) -> Result<(), Error> {
        self.gather.odd(Anomaly::MissingTime, || what, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
