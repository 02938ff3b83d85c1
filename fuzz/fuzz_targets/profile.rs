//! A profile directory with a damaged manifest, or with a damaged segment: it is read and exported, or it is an error.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use profile::export::{Format, export};
use profile::{Host, Run};
use trace::schema::{CounterRow, Table};
use trace::{Batch, Profile, Writer};

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("a.profile");
    let mut writer = Writer::create(&path, "fuzz").expect("a new directory");
    let mut batch = Batch::new(Table::Counters);
    batch.push(&CounterRow { rank: 0, track: 0, ts: 5, name: "memory", series: "rss", value: 1e9, unit: Some("B") });
    writer.write(&batch).expect("room for a segment");
    writer.finish().expect("room for a manifest");
    let file = if choice % 2 == 0 { "manifest.json" } else { "counters/000000.parquet" };
    std::fs::write(path.join(file), bytes).expect("room for a file");
    let _ = read(&path, dir.path());
});

fn read(path: &Path, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let profile = Profile::open(path)?;
    Run::load(&profile, None, Host::Operands)?;
    export(&profile, Format::Csv, &dir.join("csv"), false)?;
    export(&profile, Format::Perfetto, &dir.join("out.pftrace"), false)?;
    Ok(())
}
