use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost::Message;
use serde_json::Value;
use trace::schema::{
    CounterRow, DeviceRow, FlowRow, HostRow, InstantRow, MemoryRow, MetadataRow, RankRow, Table, TrackRow,
};
use trace::{Batch, Profile, Writer};

use super::perfetto::{EventType, Trace};
use super::{Error, Format, export};

fn host<'a>(track: i64, ts: i64, dur: i64, depth: i64, kind: &'a str, name: &'a str) -> HostRow<'a> {
    HostRow { rank: track / 10, track, ts, dur, depth, kind, name, ..HostRow::default() }
}

fn device<'a>(track: i64, ts: i64, dur: i64, depth: i64, kind: &'a str, name: &'a str) -> DeviceRow<'a> {
    DeviceRow { rank: track / 10, track, device: 3, stream: 7, ts, dur, depth, kind, name, ..DeviceRow::default() }
}

const BASE: i64 = 1_711_964_646_000_000_000;

/// `ranks` ranks with a thread (10 r) and a stream (10 r + 1) each, written like a recording: in two segments that are each in
/// order, and together are not.
fn profile(dir: &Path, ranks: i64) -> Profile {
    let mut writer = Writer::create(dir, "export").unwrap();
    for segment in 0..2 {
        let batch = |table| Batch::new(table);
        let (mut hosts, mut devices, mut flows) = (batch(Table::Host), batch(Table::Device), batch(Table::Flows));
        let (mut memory, mut counters) = (batch(Table::Memory), batch(Table::Counters));
        let (mut instants, mut rest) = (batch(Table::Instants), vec![]);
        for rank in 0..ranks {
            let (thread, stream) = (10 * rank, 10 * rank + 1);
            if segment == 0 {
                hosts.push(&HostRow {
                    correlation: Some(77),
                    external_id: Some(5),
                    flow: Some(1),
                    inputs: Some(r#"{"Input Dims":[[2, 3]]}"#),
                    args: Some(r#"{"cbid":211}"#),
                    ..host(thread, BASE + 10, 20, 1, "runtime", "cudaLaunchKernel")
                });
                devices.push(&DeviceRow {
                    correlation: Some(77),
                    flow: Some(2),
                    bytes: Some(64),
                    bandwidth: Some(0.5),
                    group: Some("0"),
                    sequence: Some(9),
                    dtype: Some("Float"),
                    args: Some(r#"{"grid":[1, 1, 1]}"#),
                    ..device(stream, BASE + 40, 30, 0, "kernel", "gemm, \"quoted\"\nline")
                });
                devices.push(&device(stream, BASE + 50, 40, 1, "kernel", "overlaps partly"));
                devices.push(&device(stream, BASE + 60, 0, 1, "memcpy", "Memcpy HtoD (Pageable -> Device)"));
                flows.push(&FlowRow {
                    rank,
                    track: thread,
                    ts: BASE,
                    id: Some((1 << 60) + 1),
                    id_text: None,
                    phase: "s",
                    category: Some("fwdbwd"),
                    name: "fwdbwd",
                    binding: None,
                });
                flows.push(&FlowRow {
                    rank,
                    track: thread,
                    ts: BASE + 500,
                    id: None,
                    id_text: Some("0x7"),
                    phase: "f",
                    category: None,
                    name: "stray",
                    binding: Some("e"),
                });
                let mut tracks = batch(Table::Tracks);
                for (track, kind, thread, name) in
                    [(thread, "thread", "42", "main"), (stream, "stream", "7", "stream 7 ")]
                {
                    tracks.push(&TrackRow {
                        rank,
                        track,
                        kind,
                        process: "1234",
                        thread,
                        device: None,
                        stream: None,
                        process_name: Some("python3"),
                        thread_name: Some(name),
                        label: Some("CPU"),
                        process_order: Some(5),
                        thread_order: None,
                    });
                }
                let mut all = batch(Table::Ranks);
                all.push(&RankRow {
                    rank,
                    source: "a.json",
                    rank_from: "order",
                    world_size: Some(8),
                    host: None,
                    base_ns: BASE,
                    offset_ns: 1000 * rank,
                    residual_ns: None,
                    matched_collectives: 0,
                    matched_by: None,
                    wall_offset_ns: None,
                    resolution_ns: 1,
                    first_ns: Some(BASE),
                    last_ns: Some(BASE + 100),
                });
                let mut metadata = batch(Table::Metadata);
                metadata.push(&MetadataRow { rank, key: "displayTimeUnit", value: "\"ms\"" });
                metadata.push(&MetadataRow { rank, key: "distributedInfo", value: r#"{"rank":5,"backend":"nccl"}"# });
                rest.extend([tracks, all, metadata]);
                memory.push(&MemoryRow {
                    rank,
                    track: thread,
                    ts: BASE + 5,
                    name: "alloc",
                    address: Some(-1),
                    bytes: Some(512),
                    allocated: Some(512),
                    device_type: Some(1),
                    device: Some(0),
                    ..MemoryRow::default()
                });
                let counter = |ts, value| CounterRow {
                    rank,
                    track: thread,
                    ts,
                    name: "memory",
                    series: "rss",
                    value,
                    unit: Some("B"),
                };
                counters.push(&counter(BASE + 1, 1e9));
                counters.push(&counter(BASE + 2, 0.25));
                instants.push(&InstantRow {
                    rank,
                    track: thread,
                    ts: BASE + 3,
                    name: "mark",
                    category: None,
                    scope: Some("global"),
                    args: Some("{\"x\":1}"),
                });
            } else {
                // What ends last is recorded last, though it began first.
                hosts.push(&host(thread, BASE, 100, 0, "operator", "aten::mm"));
                devices.push(&DeviceRow { flag: Some("lost_timestamp"), ..device(stream, 0, 0, 0, "kernel", "lost") });
                hosts.push(&HostRow {
                    flag: Some("negative_duration"),
                    ..host(thread, BASE + 90, -5, 2, "other", "backwards")
                });
            }
        }
        writer.write_all(rest.iter().chain([&hosts, &devices, &flows, &memory, &counters, &instants])).unwrap();
    }
    writer.finish().unwrap();
    Profile::open(dir).unwrap()
}

/// All rows of a table as text, sorted.
fn rows(profile: &Profile, table: Table) -> Vec<String> {
    let names: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
    let batch = profile.read(table, &names).unwrap();
    let cell = |column: &trace::Column, row: usize| match column {
        trace::Column::Int(values) => values[row].to_string(),
        trace::Column::Float(values) => values[row].to_string(),
        trace::Column::Text(ids) => format!("{:?}", (ids[row] != trace::NO_TEXT).then(|| batch.text(ids[row]))),
    };
    let row = |row: usize| {
        let cells: Vec<String> = batch.columns().iter().map(|(_, column)| cell(column, row)).collect();
        cells.join("|")
    };
    let mut all: Vec<String> = (0..batch.len()).map(row).collect();
    all.sort_unstable();
    all
}

#[test]
fn chrome_is_what_kineto_writes_one_file_a_rank() {
    let dir = tempfile::tempdir().unwrap();
    let one = profile(&dir.path().join("one"), 1);
    let out = dir.path().join("one.json");
    let summary = export(&one, Format::Chrome, &out, false).unwrap();
    let text = fs::read(&out).unwrap();
    assert_eq!((summary.files[0].bytes, summary.events), (text.len() as u64, 13));
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["baseTimeNanoseconds"], BASE);
    assert_eq!(json["distributedInfo"], serde_json::json!({"backend": "nccl", "rank": 0, "world_size": 8}));
    assert_eq!(json["displayTimeUnit"], "ms");
    let events = json["traceEvents"].as_array().unwrap();
    let find = |name: &str| events.iter().find(|event| event["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    let launch = find("cudaLaunchKernel");
    assert_eq!((&launch["cat"], &launch["pid"], &launch["tid"]), (&"cuda_runtime".into(), &1234.into(), &42.into()));
    let args = serde_json::json!({"External id": 5, "correlation": 77, "Input Dims": [[2, 3]], "cbid": 211});
    assert_eq!(launch["args"], args);
    assert!(String::from_utf8_lossy(&text).contains("\"ts\": 0.010, \"dur\": 0.020"));
    let kernel = find("gemm, \"quoted\"\nline");
    let args = serde_json::json!({
        "device": 3, "stream": 7, "correlation": 77, "bytes": 64, "Seq": 9, "memory bandwidth (GB/s)": 0.5,
        "Process Group Name": "0", "dtype": "Float", "grid": [1, 1, 1],
    });
    assert_eq!(kernel["args"], args);
    let arrows: Vec<_> = events.iter().filter(|event| event["cat"] == "ac2g").collect();
    assert_eq!((&arrows[0]["ph"], &arrows[0]["id"], &arrows[0]["ts"]), (&"s".into(), &77.into(), &0.010.into()));
    assert_eq!((&arrows[1]["ph"], &arrows[1]["tid"], &arrows[1]["ts"]), (&"f".into(), &7.into(), &0.040.into()));
    assert_eq!((&find("fwdbwd")["id"], &find("stray")["id"]), (&((1_i64 << 60) + 1).into(), &"0x7".into()));
    assert_eq!((&find("lost")["ts"], &find("backwards")["dur"]), (&0.0.into(), &(-0.005).into()));
    assert_eq!(find("[memory]")["args"]["Name"], "alloc");
    assert_eq!(find("memory")["args"], serde_json::json!({"rss": 1e9}));
    assert_eq!(find("mark")["s"], "g");
    assert_eq!(find("thread_name")["args"]["name"], "main");

    let two = profile(&dir.path().join("two"), 2);
    let out = dir.path().join("ranks");
    let summary = export(&two, Format::Chrome, &out, false).unwrap();
    assert_eq!((summary.files.len(), summary.events), (2, 26));
    let mut unpacked = Vec::new();
    let packed = fs::File::open(out.join("rank1.json.gz")).unwrap();
    std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(packed), &mut unpacked).unwrap();
    let json: Value = serde_json::from_slice(&unpacked).unwrap();
    assert_eq!(json["distributedInfo"]["rank"], 1);
}

/// What a reader of Perfetto's format sees.
struct Decoded {
    /// Name, start, duration, name of the track, flows; by start.
    slices: Vec<(String, i64, i64, String, Vec<u64>)>,
    /// Name, time, flows.
    instants: Vec<(String, i64, Vec<u64>)>,
    counters: usize,
    /// Tracks without a parent.
    roots: usize,
}

fn decoded(bytes: &[u8]) -> Decoded {
    let trace = Trace::decode(bytes).unwrap();
    let (mut names, mut tracks, mut roots) = (BTreeMap::new(), BTreeMap::new(), 0);
    let mut events = Vec::new();
    for packet in trace.packet {
        for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            names.insert(name.iid.unwrap(), name.name.clone().unwrap());
        }
        if let Some(track) = packet.track_descriptor {
            tracks.insert(track.uuid.unwrap(), track.name.unwrap());
            roots += usize::from(track.parent_uuid.is_none());
        }
        if let Some(event) = packet.track_event {
            assert!(tracks.contains_key(&event.track_uuid.unwrap()), "an event of a track that comes later");
            let name = event.name_iid.map_or_else(String::new, |iid| names[&iid].clone());
            events.push((packet.timestamp.unwrap() as i64, name, event));
        }
    }
    // By rising time, ties in the order of the file: an end closes the innermost slice of its track.
    events.sort_by_key(|(ts, ..)| *ts);
    let mut open: BTreeMap<u64, Vec<(i64, String, Vec<u64>)>> = BTreeMap::new();
    let mut decoded = Decoded { slices: Vec::new(), instants: Vec::new(), counters: 0, roots };
    for (ts, name, event) in events {
        let track = event.track_uuid.unwrap();
        match event.r#type() {
            EventType::SliceBegin => open.entry(track).or_default().push((ts, name, event.flow_ids)),
            EventType::SliceEnd => {
                let (start, name, flows) = open.get_mut(&track).unwrap().pop().expect("an end without a begin");
                decoded.slices.push((name, start, ts - start, tracks[&track].clone(), flows));
            }
            EventType::Instant => decoded.instants.push((name, ts, event.flow_ids)),
            EventType::Counter => decoded.counters += 1,
            EventType::Unspecified => panic!("an event of no type"),
        }
    }
    assert!(open.values().all(Vec::is_empty));
    decoded.slices.sort_by_key(|slice| slice.1);
    decoded
}

/// Real traces, nested Python frames and partial overlaps among them: no slice is lost, and none changes its times.
#[test]
fn perfetto_has_every_slice_of_real_traces() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if !traces.is_dir() {
        eprintln!("skipped: {} is not there", traces.display());
        return;
    }
    for set in ["h100-stacks", "edge-cases/mtia-inference", "nsys-h100", "edge-cases/amd-mi250"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        crate::import::import(&[traces.join(set)], &path, &crate::import::Options::default()).unwrap();
        let profile = Profile::open(&path).unwrap();
        let out = dir.path().join("trace.pftrace");
        export(&profile, Format::Perfetto, &out, false).unwrap();
        let mut found: Vec<(String, i64, i64)> =
            decoded(&fs::read(&out).unwrap()).slices.into_iter().map(|slice| (slice.0, slice.1, slice.2)).collect();
        let mut expected = Vec::new();
        for table in [Table::Host, Table::Device] {
            let rows = profile.read(table, &["ts", "dur", "name"]).unwrap();
            let name = |row: usize| rows.text(rows.texts("name")[row]).to_owned();
            expected.extend((0..rows.len()).map(|row| (name(row), rows.ints("ts")[row], rows.ints("dur")[row])));
        }
        found.sort_unstable();
        expected.sort_unstable();
        assert!(found == expected, "{set}: {} slices of {}", found.len(), expected.len());
    }
}

#[test]
fn perfetto_has_every_event_once_on_one_clock() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&dir.path().join("p"), 2);
    let out = dir.path().join("trace.pftrace.zst");
    let summary = export(&profile, Format::Perfetto, &out, false).unwrap();
    let trace = decoded(&zstd::decode_all(fs::File::open(&out).unwrap()).unwrap());
    assert_eq!(trace.roots, 2);
    let (slices, instants, counters) = (trace.slices, trace.instants, trace.counters);
    assert_eq!((slices.len() + instants.len() + counters) as u64, summary.events);
    assert_eq!((slices.len(), instants.len(), counters), (14, 6, 4));

    let slice = |name: &str, rank: i64| {
        let found = slices.iter().filter(|slice| slice.0 == name).nth(rank as usize);
        found.unwrap_or_else(|| panic!("no {name} of rank {rank}"))
    };
    for rank in 0..2 {
        let start = BASE + 1000 * rank;
        let (_, ts, dur, line, flows) = slice("cudaLaunchKernel", rank);
        assert_eq!((*ts, *dur, line.as_str()), (start + 10, 20, "main 42"));
        let (_, ts, dur, line, kernel_flows) = slice("gemm, \"quoted\"\nline", rank);
        assert_eq!((*ts, *dur, line.as_str()), (start + 40, 30, "stream 7"));
        assert_eq!(flows, kernel_flows);
        let (_, ts, dur, line, _) = slice("overlaps partly", rank);
        assert_eq!((*ts, *dur, line.as_str()), (start + 50, 40, "stream 7 (overlapping, 1)"));
        let (_, ts, dur, _, _) = slice("lost", rank);
        assert_eq!((*ts, *dur), (start, 0));
        let (_, ts, dur, _, _) = slice("backwards", rank);
        assert_eq!((*ts, *dur), (start + 90, 0));
        // The arrow of the operator is on it, the one without a slice is an instant.
        assert_eq!(slice("aten::mm", rank).4.len(), 1);
        assert!(instants.iter().any(|(name, ts, flows)| name == "stray" && *ts == start + 500 && flows.len() == 1));
    }
    assert_ne!(slice("cudaLaunchKernel", 0).4, slice("cudaLaunchKernel", 1).4);
}

#[test]
fn parquet_files_hold_the_same_rows_sorted() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("p");
    let profile = profile(&source, 2);
    let out = dir.path().join("tables");
    let summary = export(&profile, Format::Parquet, &out, false).unwrap();
    assert_eq!(fs::read_dir(&out).unwrap().count(), summary.files.len(), "nothing else is left");

    // The files make a profile of one segment per table.
    let merged = dir.path().join("merged");
    let mut manifest: Value = serde_json::from_slice(&fs::read(source.join("manifest.json")).unwrap()).unwrap();
    for (folder, segments) in manifest["tables"].as_object_mut().unwrap() {
        fs::create_dir_all(merged.join(folder)).unwrap();
        fs::copy(out.join(format!("{folder}.parquet")), merged.join(folder).join("all.parquet")).unwrap();
        *segments = serde_json::json!([{"file": "all.parquet", "rows": 0, "bytes": 0}]);
    }
    fs::write(merged.join("manifest.json"), manifest.to_string()).unwrap();
    let merged = Profile::open(&merged).unwrap();
    for &table in Table::ALL {
        assert_eq!(rows(&merged, table), rows(&profile, table), "{table:?}");
    }
    let host = merged.read(Table::Host, &["rank", "track", "ts"]).unwrap();
    let place = |row: usize| (host.ints("rank")[row], host.ints("track")[row], host.ints("ts")[row]);
    assert!((1..host.len()).all(|row| place(row - 1) <= place(row)));
}

#[test]
fn csv_files_hold_every_row_and_quote() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&dir.path().join("p"), 1);
    let out = dir.path().join("csv");
    export(&profile, Format::Csv, &out, false).unwrap();
    for &table in Table::ALL {
        let path = out.join(table.folder()).with_extension("csv");
        if profile.manifest().rows(table) == 0 {
            assert!(!path.exists());
            continue;
        }
        let mut reader = ::csv::Reader::from_path(&path).unwrap();
        let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert!(header.iter().map(String::as_str).eq(table.columns().iter().map(|column| column.name)));
        let records: Vec<::csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(records.len() as u64, profile.manifest().rows(table), "{table:?}");
        if table == Table::Device {
            let column = |name| table.column(name).unwrap();
            let kernel = records.iter().find(|record| record[column("name")].starts_with("gemm")).unwrap();
            assert_eq!(&kernel[column("name")], "gemm, \"quoted\"\nline");
            assert_eq!(
                (&kernel[column("ts")], &kernel[column("bandwidth")]),
                ((BASE + 40).to_string().as_str(), "0.5")
            );
            assert_eq!(&kernel[column("external_id")], "");
        }
    }
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(&dir.path().join("p"), 1);
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("host.csv"), "mine").unwrap();
    fs::write(folder.join("notes"), "mine").unwrap();
    for (format, out) in [
        (Format::Chrome, &file),
        (Format::Perfetto, &file),
        (Format::Csv, &file),
        (Format::Parquet, &file),
        (Format::Csv, &folder),
        (Format::Parquet, &folder),
        (Format::Chrome, &folder),
    ] {
        assert!(matches!(export(&profile, format, out, false), Err(Error::Exists { .. })), "{format:?} {out:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    export(&profile, Format::Chrome, &file, true).unwrap();
    assert_ne!(fs::read(&file).unwrap(), b"mine");
    export(&profile, Format::Csv, &folder, true).unwrap();
    assert_ne!(fs::read(folder.join("host.csv")).unwrap(), b"mine");
    assert_eq!(fs::read(folder.join("notes")).unwrap(), b"mine");
    // A folder is never replaced by a file.
    assert!(matches!(export(&profile, Format::Chrome, &folder, true), Err(Error::Exists { .. })));
    assert!(matches!(export(&profile, Format::Chrome, &dir.path().join("no/such/file"), false), Err(Error::Io { .. })));
}
