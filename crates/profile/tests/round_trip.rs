//! Import, export as Chrome JSON, import again: the same rows, and the same analyses.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use profile::analysis::{self, analyse};
use profile::export::{Format, export};
use profile::import::{Options, import};
use profile::{Host, Run};
use serde_json::Value;
use trace::schema::Table;
use trace::{Batch, Column, NO_INT, NO_TEXT, Profile};

fn imported(inputs: &[PathBuf], out: &Path) -> Profile {
    import(inputs, out, &Options::default()).unwrap();
    Profile::open(out).unwrap()
}

/// The rows of a table as text, but for these columns, and how often each is there.
fn rows(profile: &Profile, table: Table, but: &[&str]) -> BTreeMap<String, usize> {
    let names: Vec<&str> =
        table.columns().iter().map(|column| column.name).filter(|name| !but.contains(name)).collect();
    let mut all = BTreeMap::new();
    for batch in profile.chunks(table, &names, trace::Filter::default()).unwrap() {
        let batch = batch.unwrap();
        for row in 0..batch.len() {
            *all.entry(text(&batch, row)).or_default() += 1;
        }
    }
    all
}

fn text(batch: &Batch, row: usize) -> String {
    let mut text = String::new();
    for (at, column) in batch.columns() {
        let cell = match column {
            Column::Int(values) if values[row] == NO_INT => continue,
            Column::Int(values) => values[row].to_string(),
            Column::Float(values) => values[row].to_string(),
            Column::Text(ids) if ids[row] == NO_TEXT => continue,
            // The order of arguments is no part of them.
            Column::Text(ids) => match serde_json::from_str::<serde_json::Map<String, Value>>(batch.text(ids[row])) {
                Ok(object) => format!("{:?}", object.into_iter().collect::<BTreeMap<_, _>>()),
                Err(_) => batch.text(ids[row]).to_owned(),
            },
        };
        text.push_str(&format!("{}={cell}|", batch.table().columns()[*at].name));
    }
    text
}

fn analyses(profile: &Profile) -> Value {
    let run = Run::load(profile, None, Host::Operands).unwrap();
    serde_json::to_value(analyse(&run, profile, &analysis::Options::default()).unwrap()).unwrap()
}

/// Both profiles must agree in these tables, but for these columns.
fn same(set: &str, one: &Profile, two: &Profile, tables: &[Table], but: &[&str]) {
    for &table in tables {
        let (mut left, mut right) = (rows(one, table, but), rows(two, table, but));
        let both: Vec<String> = left.keys().filter(|row| left.get(*row) == right.get(*row)).cloned().collect();
        for row in &both {
            left.remove(row);
            right.remove(row);
        }
        let some = |rows: BTreeMap<String, usize>| rows.into_iter().take(3).collect::<Vec<_>>();
        assert!(left.is_empty() && right.is_empty(), "{set}, {table:?}:\n{:#?}\n{:#?}", some(left), some(right));
    }
    let mut different = Vec::new();
    compare("", &analyses(one), &analyses(two), &mut different);
    different.retain(|place| !but.iter().any(|column| place.contains(&format!(".{column}: "))));
    assert!(different.is_empty(), "{set}: {:#?}", different.iter().take(10).collect::<Vec<_>>());
}

/// Where two values differ.
fn compare(path: &str, one: &Value, two: &Value, different: &mut Vec<String>) {
    match (one, two) {
        (Value::Object(one), Value::Object(two)) if one.keys().eq(two.keys()) => {
            one.iter().for_each(|(key, value)| compare(&format!("{path}.{key}"), value, &two[key], different));
        }
        (Value::Array(one), Value::Array(two)) if one.len() == two.len() => {
            for (at, (one, two)) in one.iter().zip(two).enumerate() {
                compare(&format!("{path}[{at}]"), one, two, different);
            }
        }
        _ if one == two => {}
        _ => different.push(format!("{path}: {one} and {two}").chars().take(400).collect()),
    }
}

const EVENTS: [Table; 6] = [Table::Host, Table::Device, Table::Memory, Table::Counters, Table::Instants, Table::Flows];

#[test]
fn every_row_of_kineto_traces_comes_back() {
    let Some(traces) = support::traces() else { return };
    let sets = [
        "dlrm-8ranks",
        "a100-nccl",
        "v100-ns",
        "rn50-2021",
        "sampled-2ranks",
        "h100-stacks",
        "v100-test",
        "edge-cases/amd-mi250",
        "edge-cases/cpu-only",
        "edge-cases/critical-path-alexnet",
        "edge-cases/critical-path-simple-add-result",
        "edge-cases/cuda-event-sync-multi-stream",
        "edge-cases/cupti-profiler",
        "edge-cases/mtia-inference",
        "edge-cases/triton",
    ];
    for set in sets {
        let dir = tempfile::tempdir().unwrap();
        let one = imported(&[traces.join(set)], &dir.path().join("one.profile"));
        let several = one.manifest().ranks.len() > 1;
        let out = dir.path().join(if several { "ranks" } else { "trace.json.zst" });
        export(&one, Format::Chrome, &out, false).unwrap();
        let two = imported(&[out], &dir.path().join("two.profile"));
        let tables = [&EVENTS[..], &[Table::Tracks, Table::Devices]].concat();
        same(set, &one, &two, &tables, &[]);
        // The file's name differs, and the rank is stated now.
        let ranks = |profile| rows(profile, Table::Ranks, &["source", "rank_from"]);
        assert_eq!(ranks(&one), ranks(&two), "{set}");
    }
}

#[test]
fn other_formats_come_back_as_what_kineto_would_have_written() {
    let Some(traces) = support::traces() else { return };
    for set in ["nsys-h100", "jax-xplane"] {
        let dir = tempfile::tempdir().unwrap();
        let one = imported(&[traces.join(set)], &dir.path().join("one.profile"));
        let out = dir.path().join(if one.manifest().ranks.len() > 1 { "ranks" } else { "trace.json" });
        export(&one, Format::Chrome, &out, false).unwrap();
        let two = imported(&[out], &dir.path().join("two.profile"));
        // Slices have categories now; lines beside threads are threads, so tracks may be numbered otherwise.
        same(set, &one, &two, &EVENTS, &["category", "track"]);
    }
}
