//! Damaged and hostile files: every import, and every reading of a profile, ends in a result or in an error, never in a panic.
//!
//! The same properties as those of the fuzz targets, on a few hundred files made of real ones: cut, flipped, spliced.

mod support;

use std::fs;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use profile::export::{Format, export};
use profile::import::{Options, import};
use profile::{Host, Run};
use trace::Profile;

/// A generator of numbers that are the same in every run (xorshift64*).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// A damaged copy of `seed`: one to eight times cut, flipped, overwritten by another part of it, doubled or given a number
/// that is a border.
fn damaged(seed: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=dice.below(8) {
        if bytes.is_empty() {
            break;
        }
        let at = dice.below(bytes.len());
        let length = (1 + dice.below(200)).min(bytes.len() - at);
        match dice.below(7) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << dice.below(8),
            2 => bytes[at] = dice.next() as u8,
            3 => drop(bytes.drain(at..at + length)),
            4 => {
                let from = dice.below(bytes.len() - length + 1);
                bytes.copy_within(from..from + length, at);
            }
            5 => {
                let piece = bytes[at..at + length].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let border: &[u8] = [
                    &b"\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
                    b"-9223372036854775808",
                    b"18446744073709551616",
                    b"1e308",
                    b"\"",
                    b"{",
                    b"}",
                    b"[[[[[[[[",
                    b"\\u0000",
                    b"null",
                    b"\0",
                    b"\xff",
                    b"-0.0005",
                ][dice.below(13)];
                bytes.splice(at..at, border.iter().copied());
            }
        }
    }
    bytes
}

/// Imports a file of these bytes; whatever profile comes of it can be read and exported. Returns rows and oddities, or none
/// for an error.
fn import_file(dir: &Path, name: &str, bytes: &[u8]) -> Option<(u64, u64)> {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    let out = dir.join("out.profile");
    let _ = fs::remove_dir_all(&out);
    let Ok(summary) = import(&[path], &out, &Options::default()) else {
        assert!(!out.exists(), "a failed import leaves nothing");
        return None;
    };
    read_profile(dir, &out).unwrap();
    let rows = summary.rows.iter().map(|(_, rows)| rows).sum();
    Some((rows, summary.diagnostics.iter().map(|line| line.count).sum()))
}

fn read_profile(dir: &Path, profile: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let profile = Profile::open(profile)?;
    let run = Run::load(&profile, None, Host::Operands)?;
    profile::analysis::analyse(&run, &profile, &profile::analysis::Options::default())?;
    export(&profile, Format::Perfetto, &dir.join("out.pftrace"), true)?;
    Ok(())
}

fn hammer(name: &str, seed: &[u8], cases: u64) {
    let dir = tempfile::tempdir().unwrap();
    let whole = import_file(dir.path(), name, seed);
    assert!(whole.is_some(), "the file itself is fine");
    let mut changed = 0;
    for case in 1..=cases {
        let bytes = damaged(seed, &mut Dice(case.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let result = catch_unwind(AssertUnwindSafe(|| import_file(dir.path(), name, &bytes)));
        let Ok(imported) = result else {
            let kept = std::env::temp_dir().join(format!("hostile-{case}-{name}"));
            fs::write(&kept, &bytes).unwrap();
            panic!("case {case} of {name} panics; it is kept as {}", kept.display());
        };
        changed += u64::from(imported != whole);
    }
    assert!(changed > cases / 2, "damage shows in {changed} of {cases} cases only");
}

fn first(folder: PathBuf) -> Vec<u8> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    fs::read(&files[0]).unwrap()
}

fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut plain).unwrap();
    plain
}

#[test]
fn chrome() {
    let Some(traces) = support::traces() else { return };
    let packed = first(traces.join("edge-cases/cuda-event-sync"));
    hammer("trace.json.gz", &packed, 40);
    hammer("trace.json", &unpacked(&packed), 60);
    hammer("cpu.json", &unpacked(&first(traces.join("edge-cases/cpu-only"))), 100);
}

#[test]
fn nsight() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("seed.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    let mut sql = String::from(
        "PRAGMA page_size = 512;
         CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
         INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.11.0');
         CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
             streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
             correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
         CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER);
         BEGIN;",
    );
    for at in 0..120 {
        sql.push_str(&format!(
            "INSERT INTO StringIds VALUES ({at}, 'kernel_{at}<float>');
             INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({at}50, {at}90, {0}, 1, 7, {at}, {0} << 24, {at});
             INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({at}10, {at}20, 0, ({0} << 24) + 5, {at}, {at}, 0);
             INSERT INTO NVTX_EVENTS VALUES ({at}00, {at}99, 59, 'step {at}', ({0} << 24) + 5);",
            at % 2
        ));
    }
    sql.push_str("COMMIT;");
    connection.execute_batch(&sql).unwrap();
    connection.close().unwrap();
    hammer("report.sqlite", &fs::read(&path).unwrap(), 200);
}

#[test]
fn xplane() {
    let Some(traces) = support::traces() else { return };
    // Without the compiled programs, which are most of the file and are not read.
    let whole = first(traces.join("jax-xplane"));
    let (mut rest, mut seed) = (&whole[..], Vec::new());
    while !rest.is_empty() {
        let field = rest;
        rest = &rest[1..];
        let length = prost::encoding::decode_varint(&mut rest).unwrap() as usize;
        let (message, after) = rest.split_at(length);
        if !message.windows(14).take(40).any(|name| name == b"/host:metadata") {
            seed.extend_from_slice(&field[..field.len() - after.len()]);
        }
        rest = after;
    }
    hammer("host.xplane.pb", &seed, 150);
}

#[test]
fn profiles() {
    let Some(traces) = support::traces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let seed = dir.path().join("seed.profile");
    import(&[traces.join("edge-cases/cuda-event-sync")], &seed, &Options::default()).unwrap();
    read_profile(dir.path(), &seed).unwrap();
    let mut files = vec![seed.join("manifest.json")];
    for entry in fs::read_dir(&seed).unwrap() {
        let folder = entry.unwrap().path();
        if folder.is_dir() {
            files.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    files.sort();
    let mut errors = 0;
    for case in 1..=120_u64 {
        let mut dice = Dice(case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let file = &files[case as usize % files.len()];
        let whole = fs::read(file).unwrap();
        let bytes = damaged(&whole, &mut dice);
        fs::write(file, &bytes).unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| read_profile(dir.path(), &seed).is_err()));
        fs::write(file, &whole).unwrap();
        match result {
            Ok(error) => errors += u32::from(error),
            Err(_) => {
                let kept = std::env::temp_dir().join(format!("hostile-{case}"));
                fs::write(&kept, &bytes).unwrap();
                panic!("case {case}, {}, panics; it is kept as {}", file.display(), kept.display());
            }
        }
    }
    assert!(errors > 30, "{errors}");
    read_profile(dir.path(), &seed).unwrap();
}
