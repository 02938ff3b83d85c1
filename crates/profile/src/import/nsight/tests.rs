use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use trace::schema::Table;
use trace::{NO_INT, NO_TEXT, Profile};

use crate::import::{Error, Options, Summary, import};
use crate::{DeviceKind, Host, Run};

/// The folder of shared traces; without it the test says so and passes.
fn traces() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there", folder.display());
        return None;
    }
    Some(folder)
}

/// A report made by these statements, imported.
fn report(dir: &Path, sql: &str) -> Result<(Summary, Profile), Error> {
    let path = dir.join("report.sqlite");
    let _ = fs::remove_file(&path);
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(sql).unwrap();
    connection.close().unwrap();
    imported(dir, &path)
}

fn imported(dir: &Path, path: &Path) -> Result<(Summary, Profile), Error> {
    let out = dir.join("out.profile");
    let _ = fs::remove_dir_all(&out);
    let summary = import(&[path.to_owned()], &out, &Options::default())?;
    Ok((summary, Profile::open(&out).unwrap()))
}

fn count(summary: &Summary, code: &str) -> u64 {
    summary.diagnostics.iter().filter(|line| line.code == code).map(|line| line.count).sum()
}

const VERSION: &str = "
    CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
    INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.11.0');";

const KERNELS: &str = "
    CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
    INSERT INTO StringIds VALUES (1, 'gemm<float>(int)'), (2, 'cudaLaunchKernel_v7000'), (3, 'forward'), (4, 'nccl');
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
        streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER,
        gridZ INTEGER);";

#[test]
fn the_h100_report_gives_the_expected_kernels_to_the_nanosecond() {
    let Some(traces) = traces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (summary, profile) = imported(dir.path(), &traces.join("nsys-h100/h100_2gpu_1s.sqlite")).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    // Two processes with a device each: two ranks.
    assert_eq!(run.ranks.iter().map(|rank| rank.info.rank).collect::<Vec<_>>(), [0, 1]);

    let mut kernels: BTreeMap<(i64, String), (u64, i64, i64, i64)> = BTreeMap::new();
    let mut copies: BTreeMap<(i64, String), (u64, i64)> = BTreeMap::new();
    for rank in &run.ranks {
        for event in &rank.device {
            assert_eq!(event.device, rank.info.rank);
            match event.kind {
                DeviceKind::Kernel => {
                    let name = run.text(event.name).to_owned();
                    let sums = kernels.entry((event.device, name)).or_insert((0, 0, i64::MAX, i64::MIN));
                    *sums = (sums.0 + 1, sums.1 + event.dur, sums.2.min(event.dur), sums.3.max(event.dur));
                }
                DeviceKind::Memcpy => {
                    let direction = run.text(event.name).split(' ').nth(1).unwrap().to_owned();
                    let sums = copies.entry((event.device, direction)).or_default();
                    *sums = (sums.0 + 1, sums.1 + event.bytes.unwrap());
                }
                _ => {}
            }
        }
    }
    let mut reader = csv::Reader::from_path(traces.join("expected/exact/nsys-h100_kernels_ns.csv")).unwrap();
    let mut rows = 0;
    for record in reader.records() {
        let record = record.unwrap();
        let number = |at: usize| record[at].parse::<i64>().unwrap();
        let found = kernels[&(number(0), record[1].to_owned())];
        assert_eq!(found, (number(2) as u64, number(3), number(4), number(5)), "{}", &record[1]);
        rows += 1;
    }
    assert_eq!((rows, kernels.len()), (82, 82));
    for (device, sum) in [(0, 22_385_163), (1, 22_444_359)] {
        let mine = kernels.iter().filter(|((of, _), _)| *of == device);
        assert_eq!(mine.map(|(_, sums)| sums.1).sum::<i64>(), sum);
        assert_eq!(copies[&(device, "HtoD".into())], (225, 25_475_253_792));
        assert_eq!(copies[&(device, "DtoD".into())], (225, 29_684_236_288));
        assert_eq!(copies[&(device, "DtoH".into())], (2, 9));
    }

    // Each table of the report, row by row.
    let host = profile.read(Table::Host, &["kind", "name", "flow"]).unwrap();
    let kind = |word: &str| host.texts("kind").iter().filter(|&&id| host.text(id) == word).count();
    assert_eq!((kind("runtime"), kind("operator"), kind("overhead")), (5796, 16_782, 198));
    let names: Vec<&str> = host.texts("name").iter().map(|&id| host.text(id)).collect();
    assert_eq!(names.iter().filter(|name| **name == "cudaLaunchKernel").count(), 2788);
    assert!(names.iter().all(|name| !name.contains("op_id")));
    let device = profile.read(Table::Device, &["kind", "flow"]).unwrap();
    assert_eq!(device.len(), 3442 + 904 + 22 + 244);
    assert_eq!(summary.sources[0].events, (5796 + 16_782 + 198 + device.len()) as u64);
    // Kernels without their launch in the window have no arrow there, all have their end.
    assert_eq!(device.ints("flow").iter().filter(|&&flow| flow != NO_INT).count(), device.len());
    assert_eq!(count(&summary, "missing_table"), 1, "TARGET_INFO_GPU is not there");
    assert_eq!(count(&summary, "secrets_skipped"), 4);
    assert!(count(&summary, "without_launch") > 0);
    assert_eq!(run.ranks[0].info.base_ns, 1_779_630_014_975_716_426 - 35_255_823_190);
    let processes: Vec<_> = run.tracks.iter().filter_map(|track| track.process_name.as_deref()).collect();
    assert!(processes.contains(&"python3"), "{processes:?}");
}

#[test]
fn what_the_environment_holds_is_in_no_file_of_the_profile() {
    let Some(traces) = traces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret.sqlite");
    fs::copy(traces.join("nsys-h100/h100_2gpu_1s.sqlite"), &path).unwrap();
    let connection = Connection::open(&path).unwrap();
    const SECRET: &str = "hunter2-planted-token";
    connection
        .execute_batch(&format!(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = '{SECRET}', name = '{SECRET}';
             UPDATE META_DATA_CAPTURE SET value = '{SECRET}' WHERE name LIKE 'PROCESS%';
             INSERT INTO META_DATA_CAPTURE VALUES ('CUDA_TRACE_SCOPE', '{SECRET}');
             INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_USER', '{SECRET}'), ('EXPORT_PARAM_INPUT_PATH', '{SECRET}');
             UPDATE PROCESSES SET name = '/usr/bin/python3 --token={SECRET}';
             UPDATE ANALYSIS_FILE SET filename = '{SECRET}';
             INSERT INTO StringIds VALUES (99999991, '{SECRET}');
             UPDATE ANALYSIS_FILE SET contentId = 99999991;
             UPDATE ProcessStreams SET contentId = 99999991, filenameId = 99999991;"
        ))
        .unwrap();
    connection.close().unwrap();
    let (_, profile) = imported(dir.path(), &path).unwrap();
    assert!(profile.manifest().rows(Table::Host) > 20_000);
    for &table in Table::ALL {
        let names: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
        let batch = profile.read(table, &names).unwrap();
        for text in batch.all_texts().iter() {
            assert!(!text.contains("hunter2"), "{table:?}: {text}");
        }
    }
}

#[test]
fn every_table_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (summary, profile) = report(dir.path(), VERSION).unwrap();
    assert_eq!((summary.sources[0].events, profile.manifest().rows(Table::Device)), (0, 0));
    assert_eq!((count(&summary, "empty_trace"), count(&summary, "missing_table")), (1, 10));

    // Kernels alone, without a table of texts.
    let kernels = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, demangledName INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 30, 1);";
    let (_, profile) = report(dir.path(), &format!("{VERSION}{kernels}")).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let [event] = run.ranks[0].device[..] else { panic!("one kernel") };
    assert_eq!((event.ts, event.dur, run.text(event.name)), (10, 20, "unknown kernel"));
}

#[test]
fn kernels_may_come_in_any_order_and_with_any_times() {
    let dir = tempfile::tempdir().unwrap();
    let rows = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
            (300, 400, 0, 1, 7, 12, 0, 1, 4, 5, 6), (100, 250, 0, 1, 7, 11, 0, 1, NULL, NULL, NULL),
            (200, 200, 0, 1, 7, 13, 0, 1, 1, 1, 1), (500, 450, 0, 1, 7, 14, 0, 1, 1, 1, 1),
            (0, 0, 0, 1, 7, 15, 0, 1, 1, 1, 1), (600, 700, 0, 2, 7, 16, 0, 1, 1, 1, 1),
            ('text', 700, 0, 2, 7, 16, 0, 1, 1, 1, 1), (600, 9223372036854775807, 0, 2, 7, 16, 0, 1, 1, 1, 1),
            (-9223372036854775807, 9223372036854775807, 0, 2, 7, 16, 0, 1, 1, 1, 1);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
            correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (90, 95, 0, 0x1000005000006, 11, 2, 0), (80, 85, 1, NULL, 12, 99, 2);";
    let (summary, profile) = report(dir.path(), &format!("{VERSION}{KERNELS}{rows}")).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let events = &run.ranks[0].device;
    assert_eq!(events.len(), 7);
    let order: Vec<_> = events.iter().map(|event| (event.track, event.ts)).collect();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(
        ["zero_duration", "negative_duration", "lost_timestamp", "ignored_field", "missing_time", "time_out_of_range"]
            .map(|code| count(&summary, code)),
        [1, 1, 1, 1, 1, 1]
    );
    // A stream of another context is another stream.
    let streams: Vec<_> =
        run.tracks.iter().filter(|track| track.kind == "stream").map(|track| &*track.thread).collect();
    assert_eq!(streams, ["7", "7 (context 2)"]);
    let args = profile.read(Table::Device, &["ts", "args"]).unwrap();
    let row = args.ints("ts").iter().position(|&ts| ts == 300).unwrap();
    assert_eq!(args.text(args.texts("args")[row]), r#"{"context": 1, "shared memory": 0, "grid": [4, 5, 6]}"#);

    let host = profile.read(Table::Host, &["ts", "kind", "name", "args", "correlation"]).unwrap();
    let row = host.ints("ts").iter().position(|&ts| ts == 90).unwrap();
    let text = |name: &str| host.text(host.texts(name)[row]);
    assert_eq!((text("kind"), text("name"), host.ints("correlation")[row]), ("runtime", "cudaLaunchKernel", 11));
    assert_eq!(text("args"), r#"{"api": "cudaLaunchKernel_v7000"}"#);
    let threads: Vec<_> = run.tracks.iter().filter(|track| track.kind == "thread").collect();
    assert!(threads.iter().any(|track| (&*track.process, &*track.thread) == ("5", "6")), "{threads:?}");
    let row = host.ints("ts").iter().position(|&ts| ts == 80).unwrap();
    assert_eq!(host.text(host.texts("kind")[row]), "driver");
    assert_eq!(host.text(host.texts("args")[row]), r#"{"return value": 2}"#);
}

#[test]
fn nvtx_of_every_version_is_read_by_text_and_by_number() {
    let dir = tempfile::tempdir().unwrap();
    for table in ["NVTX_EVENTS", "NVTX_EVENTS_V2", "NVTX_EVENTS_V3"] {
        let sql = format!(
            "{VERSION}{KERNELS}
            CREATE TABLE {table} (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER,
                text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, int64Value INTEGER,
                jsonText TEXT);
            INSERT INTO {table} VALUES
                (1, NULL, 75, NULL, NULL, NULL, 0x1000005000006, NULL, 4, 2, NULL, NULL),
                (10, 90, 59, NULL, NULL, 'step 1', 0x1000005000006, NULL, NULL, 0, NULL, NULL),
                (20, 60, 59, NULL, NULL, NULL, 0x1000005000006, NULL, 3, 2, 42, '{{\"bytes\": 7}}'),
                (30, 95, 60, 8, NULL, 'prefetch', 0x1000005000006, 0x1000005000007, NULL, 0, NULL, NULL),
                (40, NULL, 34, NULL, NULL, 'mark', 0x1000005000006, NULL, NULL, 0, NULL, NULL),
                (50, 55, 59, NULL, NULL, 'aten::add, seq = 5, op_id = 3', 0x1000005000006, NULL, NULL, 0, NULL, NULL),
                (70, NULL, 59, NULL, NULL, 'unfinished', 0x1000005000006, NULL, NULL, 0, NULL, NULL);"
        );
        let (summary, profile) = report(dir.path(), &sql).unwrap();
        let host = profile.read(Table::Host, &["ts", "dur", "kind", "name", "sequence", "flag", "args"]).unwrap();
        let row = |name: &str| {
            let names = host.texts("name");
            (0..host.len()).find(|&row| host.text(names[row]) == name).unwrap_or_else(|| panic!("no {name} in {table}"))
        };
        let times = |name: &str| (host.ints("ts")[row(name)], host.ints("dur")[row(name)]);
        let text = |name: &str, column: &str| host.text(host.texts(column)[row(name)]);
        assert_eq!((times("step 1"), text("step 1", "kind")), ((10, 80), "annotation"));
        assert_eq!(times("forward"), (20, 40));
        assert_eq!(text("forward", "args"), r#"{"domain": "nccl", "payload": 42, "json": {"bytes": 7}}"#);
        assert_eq!(text("prefetch", "args"), r#"{"range id": 8, "end thread": 7}"#);
        assert_eq!((text("aten::add", "kind"), text("aten::add", "args")), ("operator", r#"{"op_id": 3}"#));
        assert_eq!(host.ints("sequence")[row("aten::add")], 5);
        assert_eq!(text("unfinished", "flag"), "unfinished");
        assert_eq!(host.texts("flag")[row("step 1")], NO_TEXT);
        let instants = profile.read(Table::Instants, &["ts", "name"]).unwrap();
        assert_eq!((instants.len(), instants.ints("ts")[0], instants.text(instants.texts("name")[0])), (1, 40, "mark"));
        assert_eq!((count(&summary, "unmatched_begin"), count(&summary, "partial_overlap")), (1, 0));
    }
}

#[test]
fn devices_and_ranks_are_those_of_the_processes_that_use_them() {
    let dir = tempfile::tempdir().unwrap();
    let gpus = "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'H100', 80, 132), (1, 'H100', 80, 132);";
    let kernel = |device: i64, process: i64| {
        format!("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, {device}, 1, 7, 1, {process}, 1, 1, 1, 1);")
    };
    // One process with two devices is one rank, two processes with one each are two: in the order of their devices.
    let one = format!("{VERSION}{KERNELS}{gpus}{}{}", kernel(0, 5 << 24), kernel(1, 5 << 24));
    let (summary, profile) = report(dir.path(), &one).unwrap();
    assert_eq!(summary.ranks.len(), 1);
    assert_eq!(profile.read(Table::Devices, &["device"]).unwrap().ints("device"), [0, 1]);
    let two = format!("{VERSION}{KERNELS}{gpus}{}{}", kernel(1, 5 << 24), kernel(0, 6 << 24));
    let (summary, profile) = report(dir.path(), &two).unwrap();
    assert_eq!(
        summary.ranks.iter().map(|rank| (rank.rank, rank.rank_from)).collect::<Vec<_>>(),
        [(0, "device"), (1, "device")]
    );
    let devices = profile.read(Table::Devices, &["rank", "device", "multiprocessors"]).unwrap();
    assert_eq!((devices.ints("rank"), devices.ints("device")), (&[0, 1][..], &[0, 1][..]));
    assert_eq!(devices.ints("multiprocessors"), [132, 132]);
}

#[test]
fn other_files_and_other_versions_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |sql: &str| report(dir.path(), sql).err().expect("no profile").to_string();
    assert!(refused("CREATE TABLE a (b)").contains("no export of Nsight Systems"));
    let version = |version: &str| {
        format!(
            "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '{version}');"
        )
    };
    assert!(refused(&version("3.10.2")).contains("older than 3.11"));
    assert!(refused(&version("new")).contains("is no version"));
    assert!(report(dir.path(), &version("4.0.0")).is_ok());
    // Every look-up in a table without an index would read all of it.
    let slow = format!("{VERSION} CREATE TABLE StringIds (id INTEGER, value TEXT);");
    assert!(refused(&slow).contains("no primary key"));
    // Views are not tables, whatever they are called.
    let view = format!("{VERSION} CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL;");
    let (summary, _) = report(dir.path(), &view).unwrap();
    assert_eq!(summary.sources[0].events, 0);
}

#[test]
fn rows_and_texts_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let rows = "INSERT INTO StringIds VALUES (5, printf('%.*c', 200000, 'x'));
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 1, 7, 1, 0, 5, 1, 1, 1);";
    let (summary, profile) = report(dir.path(), &format!("{VERSION}{KERNELS}{rows}")).unwrap();
    assert_eq!(count(&summary, "oversized_text"), 1);
    let names = profile.read(Table::Device, &["name"]).unwrap();
    assert_eq!(names.text(names.texts("name")[0]).len(), 1 << 16);
    let rows = "INSERT INTO StringIds VALUES (5, printf('%.*c', 20000000, 'x'));
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 1, 7, 1, 0, 5, 1, 1, 1);";
    let error = report(dir.path(), &format!("{VERSION}{KERNELS}{rows}")).err().expect("too big").to_string();
    assert!(error.contains("StringIds") && error.contains("too big"), "{error}");
}

#[test]
fn a_cut_or_damaged_report_ends_in_an_error_or_in_a_profile() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..3000)
        .map(|at| {
            format!("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({at}0, {at}5, 0, 1, 7, {at}, 0, 1, 1, 1, 1);")
        })
        .collect();
    report(dir.path(), &format!("{VERSION}{KERNELS}BEGIN;{rows}COMMIT;")).unwrap();
    let whole = fs::read(dir.path().join("report.sqlite")).unwrap();
    let path = dir.path().join("damaged.sqlite");
    let mut errors = 0;
    for at in 1..40 {
        let mut bytes = whole[..whole.len() * at / 40].to_vec();
        if at % 2 == 0 {
            bytes = whole.clone();
            for place in (100..bytes.len()).step_by(97 * at) {
                bytes[place] = bytes[place].wrapping_add(at as u8);
            }
        }
        fs::write(&path, bytes).unwrap();
        errors += imported(dir.path(), &path).is_err() as u32;
    }
    assert!(errors > 20, "{errors}");
}
