//! The least that any importer must do: one pass of serde_json over a mapped trace into columns.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Parse a Chrome trace into columns of names, times and durations, once
#[derive(clap::Args)]
pub struct Args {
    /// The trace: plain JSON
    file: PathBuf,
}

/// Reads the trace and prints how long it took.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let file = File::open(&args.file)?;
    // SAFETY: the bench's own file, which nobody changes while it is read.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    let mut columns = Columns::default();
    let mut reader = serde_json::Deserializer::from_slice(&map);
    Root(&mut columns).deserialize(&mut reader)?;
    let slices = columns.names.len();
    let busy: f64 = columns.durations.iter().sum();
    let last = columns.starts.iter().fold(0.0, |last: f64, start| last.max(*start));
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}",
        serde_json::json!({"seconds": seconds, "slices": slices, "busy_us": busy, "last_us": last, "arguments": columns.arguments.len()})
    );
    Ok(())
}

#[derive(Default)]
struct Columns {
    names: Vec<u32>,
    texts: std::collections::HashMap<String, u32>,
    starts: Vec<f64>,
    durations: Vec<f64>,
    arguments: Vec<[Option<i64>; 5]>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    ph: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Joins,
}

/// The arguments that analyses join by.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Joins {
    #[serde(rename = "External id")]
    external_id: Option<i64>,
    correlation: Option<i64>,
    stream: Option<i64>,
    device: Option<i64>,
    bytes: Option<i64>,
}

struct Root<'c>(&'c mut Columns);

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == "traceEvents" {
                map.next_value_seed(Events(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Events<'c>(&'c mut Columns);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        let columns = self.0;
        while let Some(event) = events.next_element::<Event<'de>>()? {
            if event.ph != "X" {
                continue;
            }
            let name = match columns.texts.get(&*event.name) {
                Some(name) => *name,
                None => {
                    let name = columns.texts.len() as u32;
                    columns.texts.insert(event.name.into_owned(), name);
                    name
                }
            };
            columns.names.push(name);
            columns.starts.push(event.ts);
            columns.durations.push(event.dur);
            let Joins { external_id, correlation, stream, device, bytes } = event.args;
            columns.arguments.push([external_id, correlation, stream, device, bytes]);
        }
        Ok(())
    }
}
