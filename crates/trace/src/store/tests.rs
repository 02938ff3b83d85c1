use std::fs;
use std::path::Path;

use super::*;
use crate::schema::{CounterRow, DeviceRow, Table};
use crate::{Batch, NO_TEXT};

fn row<'a>(rank: i64, track: i64, ts: i64, name: &'a str, args: Option<&'a str>) -> DeviceRow<'a> {
    DeviceRow {
        rank,
        track,
        stream: 7,
        ts,
        dur: 10,
        kind: "kernel",
        name,
        correlation: (ts % 2 == 0).then_some(ts),
        bandwidth: (ts % 3 == 0).then_some(1.5),
        args,
        ..DeviceRow::default()
    }
}

/// Two ranks with two tracks each, in two segments; the first fills several row groups.
fn profile(dir: &Path) -> Profile {
    let mut writer = Writer::create(dir, "test").unwrap();
    for rank in 0..2 {
        let mut batch = Batch::new(Table::Device);
        for track in 0..2 {
            for at in 0..(if rank == 0 { 100_000 } else { 10 }) {
                batch.push(&row(
                    rank,
                    2 * rank + track,
                    at * 100,
                    ["gemm", "relu"][at as usize % 2],
                    Some("{\"a\":1}"),
                ));
            }
        }
        writer.write(&batch).unwrap();
    }
    writer.finish().unwrap();
    Profile::open(dir).unwrap()
}

#[test]
fn what_is_written_is_read_nulls_and_texts_included() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&dir.path().join("p"));
    let manifest = profile.manifest();
    assert_eq!((manifest.state, manifest.rows(Table::Device)), (State::Complete, 200_020));
    let all = profile.read(Table::Device, &["ts", "name", "correlation", "bandwidth", "flag", "args"]).unwrap();
    assert_eq!(all.len(), 200_020);
    for at in [0usize, 1, 99_999, 100_000, 199_999, 200_000, 200_019] {
        let step = at % 100_000 % if at < 200_000 { 100_000 } else { 10 };
        assert_eq!(all.ints("ts")[at], step as i64 * 100);
        assert_eq!(all.text(all.texts("name")[at]), ["gemm", "relu"][step % 2]);
        assert_eq!(all.ints("correlation")[at], step as i64 * 100);
        assert_eq!(all.floats("bandwidth")[at].is_nan(), step % 3 != 0);
        assert_eq!(all.texts("flag")[at], crate::NO_TEXT);
        assert_eq!(all.text(all.texts("args")[at]), "{\"a\":1}");
    }
}

#[test]
fn a_filter_takes_the_rows_of_its_rank_track_and_window_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&dir.path().join("p"));
    let count = |filter| profile.read_where(Table::Device, &["ts"], filter).unwrap().len();
    assert_eq!(count(Filter { rank: Some(1), ..Filter::default() }), 20);
    assert_eq!(count(Filter { track: Some(1), ..Filter::default() }), 100_000);
    assert_eq!(count(Filter { track: Some(9), ..Filter::default() }), 0);
    // [1000, 1300) is touched by what starts at 1000, 1100 and 1200; what ends at 910 is not.
    assert_eq!(count(Filter { track: Some(0), window: Some((1000, 1300)), ..Filter::default() }), 3);
    assert_eq!(count(Filter { track: Some(0), window: Some((1010, 1300)), ..Filter::default() }), 3);
    assert_eq!(count(Filter { track: Some(0), window: Some((1011, 1300)), ..Filter::default() }), 2);
}

#[test]
fn a_window_has_all_columns_of_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&dir.path().join("p"));
    let columns = ["name", "correlation", "ts", "args", "dur", "track"];
    let whole = profile.read(Table::Device, &columns).unwrap();
    for window in [(0, 1), (1000, 1300), (6_500_000, 6_600_000), (655_355, 655_365), (-5, 1 << 40), (1 << 40, 1 << 41)]
    {
        let filter = Filter { window: Some(window), track: Some(1), ..Filter::default() };
        let part = profile.read_where(Table::Device, &columns, filter).unwrap();
        let taken = |row: &usize| {
            let (ts, dur) = (whole.ints("ts")[*row], whole.ints("dur")[*row]);
            whole.ints("track")[*row] == 1 && ts < window.1 && window.0 <= ts + dur
        };
        let rows: Vec<usize> = (0..whole.len()).filter(taken).collect();
        assert_eq!(part.len(), rows.len(), "{window:?}");
        for column in ["correlation", "ts", "dur", "track"] {
            assert!(rows.iter().map(|&row| whole.ints(column)[row]).eq(part.ints(column).iter().copied()), "{column}");
        }
        for column in ["name", "args"] {
            let expected = rows.iter().map(|&row| whole.texts(column)[row]).map(|id| (id == NO_TEXT, whole.text(id)));
            let found = part.texts(column).iter().map(|&id| (id == NO_TEXT, part.text(id)));
            assert!(expected.eq(found), "{column}");
        }
    }
}

#[test]
fn chunks_are_the_rows_of_one_read_piece_by_piece() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&dir.path().join("p"));
    for filter in [
        Filter::default(),
        Filter { rank: Some(1), ..Filter::default() },
        Filter { track: Some(0), window: Some((1000, 1300)), ..Filter::default() },
    ] {
        let whole = profile.read_where(Table::Device, &["ts", "name"], filter).unwrap();
        let mut ts = Vec::new();
        let mut names = Vec::new();
        for chunk in profile.chunks(Table::Device, &["ts", "name"], filter).unwrap() {
            let chunk = chunk.unwrap();
            ts.extend_from_slice(chunk.ints("ts"));
            names.extend(chunk.texts("name").iter().map(|&id| chunk.text(id).to_owned()));
        }
        assert_eq!(ts, whole.ints("ts"));
        assert!(names.iter().map(String::as_str).eq(whole.texts("name").iter().map(|&id| whole.text(id))));
    }
}

#[test]
fn what_no_manifest_names_is_not_part_of_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let mut writer = Writer::create(&path, "killed").unwrap();
    let mut batch = Batch::new(Table::Device);
    batch.push(&row(0, 0, 0, "kept", None));
    writer.write(&batch).unwrap();
    // The next segment is renamed into place, and then the writer dies.
    let mut segment = SegmentWriter::new(Table::Device);
    segment.append(&batch, &mut writer).unwrap();
    segment.close(&mut writer).unwrap();
    drop(writer);
    let profile = Profile::open(&path).unwrap();
    assert_eq!(profile.manifest().state, State::Recording);
    assert_eq!(profile.read(Table::Device, &["ts"]).unwrap().len(), 1);
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p");
    let open = |path: &Path| Profile::open(path).err().unwrap().to_string();
    assert!(open(&path).contains("No such file"), "{}", open(&path));
    assert!(open(dir.path()).contains("not a profile"), "{}", open(dir.path()));
    profile(&path);
    assert!(matches!(Writer::create(&path, "again"), Err(Error::Exists { .. })));

    let segment = path.join("device/000001.parquet");
    let whole = fs::read(&segment).unwrap();
    for damage in [&whole[..whole.len() / 2], b"", b"PAR1"] {
        fs::write(&segment, damage).unwrap();
        let error = Profile::open(&path).unwrap().read(Table::Device, &["ts"]).err().unwrap().to_string();
        assert!(error.contains("device/000001.parquet"), "{error}");
    }
    fs::write(path.join("manifest.json"), "{\"format\": \"other\"}").unwrap();
    assert!(open(&path).contains("manifest.json"), "{}", open(&path));
    fs::write(path.join("manifest.json"), "[").unwrap();
    assert!(open(&path).contains("not a manifest"), "{}", open(&path));
}

#[test]
fn threads_that_read_one_segment_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(&dir.path().join("p"), "p").unwrap();
    let mut batch = Batch::new(Table::Counters);
    for ts in 0..600_000 {
        batch.push(&CounterRow {
            rank: 0,
            track: 0,
            ts: ts * ts % 1_000_003,
            name: "n",
            series: "",
            value: 0.0,
            unit: None,
        });
    }
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    for _ in 0..5 {
        let rows =
            Profile::open(&dir.path().join("p")).unwrap().read(Table::Counters, &["ts", "value", "name"]).unwrap();
        assert!(rows.ints("ts") == batch.ints("ts"));
    }
}
