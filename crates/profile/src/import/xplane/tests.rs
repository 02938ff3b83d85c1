use std::fs;
use std::path::{Path, PathBuf};

use prost::encoding::{WireType, encode_key, encode_varint};
use trace::schema::Table;
use trace::{NO_INT, Profile};

use crate::import::{Error, Options, Summary, import};
use crate::{DeviceKind, Host, HostKind, Run};

/// A message in Protobuf's wire format.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn int(mut self, field: u32, value: i64) -> Self {
        encode_key(field, WireType::Varint, &mut self.0);
        encode_varint(value as u64, &mut self.0);
        self
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        encode_key(field, WireType::LengthDelimited, &mut self.0);
        encode_varint(value.len() as u64, &mut self.0);
        self.0.extend_from_slice(value);
        self
    }

    fn message(self, field: u32, value: Message) -> Self {
        self.bytes(field, &value.0)
    }
}

fn new() -> Message {
    Message::default()
}

/// An entry of the names of events (4) or statistics (5).
fn named(plane: Message, field: u32, id: i64, name: &str) -> Message {
    plane.message(field, new().int(1, id).message(2, new().int(1, id).bytes(2, name.as_bytes())))
}

fn event(name: i64, offset_ps: i64, duration_ps: i64) -> Message {
    new().int(1, name).int(2, offset_ps).int(3, duration_ps)
}

fn line(id: i64, name: &str, timestamp_ns: i64) -> Message {
    new().int(1, id).bytes(2, name.as_bytes()).int(3, timestamp_ns)
}

fn imported(dir: &Path, space: &[u8]) -> Result<(Summary, Profile), Error> {
    let path = dir.join("host.xplane.pb");
    fs::write(&path, space).unwrap();
    let out = dir.join("out.profile");
    let _ = fs::remove_dir_all(&out);
    let summary = import(&[path], &out, &Options::default())?;
    Ok((summary, Profile::open(&out).unwrap()))
}

fn count(summary: &Summary, code: &str) -> u64 {
    summary.diagnostics.iter().filter(|line| line.code == code).map(|line| line.count).sum()
}

/// The shared file of JAX; without it the test says so and passes.
fn jax() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/jax-xplane");
    let Ok(mut entries) = fs::read_dir(&folder) else {
        eprintln!("skipped: {} is not there", folder.display());
        return None;
    };
    entries.find_map(|entry| Some(entry.ok()?.path()).filter(|path| path.to_string_lossy().ends_with(".xplane.pb")))
}

#[test]
fn the_jax_file_gives_every_event() {
    let Some(path) = jax() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (summary, profile) = imported(dir.path(), &fs::read(path).unwrap()).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let [rank] = &run.ranks[..] else { panic!("one host is one rank") };
    assert_eq!((rank.device.len(), rank.host.len(), summary.sources[0].events), (150, 1842, 1992));
    assert!(rank.device.iter().all(|event| (event.device, event.stream) == (0, 2)));
    assert!(rank.device.iter().all(|event| event.kind == DeviceKind::Kernel));
    let kernel = &rank.device[0];
    assert_eq!(run.text(kernel.name), "wrapped_convert.kd");
    assert_eq!(rank.info.base_ns, 1_779_266_702_889_805_563);
    assert_eq!((kernel.ts - rank.info.base_ns, kernel.dur), (9_715_872_534 + 660_484, 2960));
    // Every kernel has its launch.
    let launches: Vec<_> = rank.host.iter().filter(|event| event.kind == HostKind::Runtime).collect();
    assert_eq!(launches.len(), 150);
    assert!(rank.device.iter().all(|event| launches.iter().any(|launch| launch.correlation == event.correlation)));
    assert_eq!(count(&summary, "without_launch"), 0);
    let flows = profile.read(Table::Device, &["flow", "args"]).unwrap();
    assert!(flows.ints("flow").iter().all(|&flow| flow == 2));
    let args = flows.text(flows.texts("args")[0]);
    assert!(args.contains(r#""hlo_op": "wrapped_convert""#) && args.contains("grid:1,1,1"), "{args}");
    assert!(rank.host.iter().any(|event| event.kind == HostKind::Python));
    assert_eq!((count(&summary, "sub_nanosecond"), count(&summary, "empty_plane")), (0, 9));
    // All eight devices are described.
    let devices = profile.read(Table::Devices, &["name", "memory_bytes", "multiprocessors"]).unwrap();
    assert_eq!(devices.len(), 8);
    assert_eq!((devices.ints("memory_bytes")[0], devices.ints("multiprocessors")[0]), (309_220_868_096, 256));
    assert_eq!(devices.text(devices.texts("name")[0]), "AMD GPU");
    let metadata = profile.read(Table::Metadata, &["key", "value"]).unwrap();
    assert_eq!(metadata.len(), 2);
    assert_eq!(metadata.text(metadata.texts("value")[0]), "1779266702889805563");
    let threads: Vec<_> = run.tracks.iter().filter_map(|track| track.thread_name.as_deref()).collect();
    assert!(threads.contains(&"Stream #2") && threads.contains(&"python3"), "{threads:?}");
}

#[test]
fn lines_are_streams_annotations_and_threads() {
    let dir = tempfile::tempdir().unwrap();
    let details = "kind_src:pageable kind_dst:device size:64 dest:0 async:1";
    let mut gpu = new().bytes(2, b"/device:GPU:3");
    // Names come after the lines that use them, as in the file.
    let copy = event(2, 2500, 1000).message(4, new().int(1, 11).bytes(5, details.as_bytes()));
    gpu = gpu.message(3, line(1, "Stream #17(MemcpyH2D)", 1000).message(4, copy));
    let kernel = event(1, 0, 1500).message(4, new().int(1, 10).int(3, 77)).message(4, new().int(1, 12).int(7, 13));
    gpu = gpu.message(3, line(2, "Stream #2", 1000).message(4, kernel).message(4, new().int(1, 1).int(5, 4)));
    gpu = gpu.message(3, line(3, "XLA Ops", 1000).message(4, event(3, 0, 9000)));
    gpu = named(named(named(gpu, 4, 1, "gemm"), 4, 2, "MemcpyH2D"), 4, 3, "fusion.1");
    for (id, name) in [(10, "correlation_id"), (11, "memcpy_details"), (12, "hlo_op"), (13, "dot.7")] {
        gpu = named(gpu, 5, id, name);
    }
    let mut host = new().bytes(2, b"/host:CPU");
    let launch = event(1, 0, 500).message(4, new().int(1, 10).int(3, 77));
    let threads = line(-5, "worker", 0)
        .message(4, launch)
        .message(4, event(2, 0, 4_000_000).message(4, new().int(1, 11).int(4, 9)))
        .message(4, event(3, 1, 0));
    host = host.message(3, threads);
    host = named(named(named(host, 4, 1, "cuLaunchKernel"), 4, 2, "train"), 4, 3, "$a.py:1 f");
    host = named(named(host, 5, 10, "correlation_id"), 5, 11, "step_num");
    let tpu = named(new().bytes(2, b"/device:TPU:4"), 4, 1, "while");
    let tpu = tpu.message(3, line(1, "XLA Ops", 0).message(4, event(1, 0, 7000)));
    let tpu = tpu.message(3, line(2, "Steps", 0).message(4, event(9, 0, 7000)));
    let secret = named(new().bytes(2, b"Task Environment"), 5, 1, "environ")
        .message(6, new().int(1, 1).bytes(5, b"TOKEN=hunter2"));
    let space = new().message(1, host).message(1, gpu).message(1, tpu).message(1, secret).bytes(4, b"node7");

    let (summary, profile) = imported(dir.path(), &space.0).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let [rank] = &run.ranks[..] else { panic!("one rank") };
    assert_eq!(rank.info.host.as_deref(), Some("node7"));
    let device = |name: &str| {
        rank.device.iter().find(|event| run.text(event.name) == name).unwrap_or_else(|| panic!("no {name}"))
    };
    let gemm = device("gemm");
    assert_eq!((gemm.kind, gemm.device, gemm.stream, gemm.correlation), (DeviceKind::Kernel, 3, 2, Some(77)));
    // 1500 ps are 2 ns, from tie to even; 2500 ps are 2 ns, 3500 ps are 4.
    assert_eq!((gemm.ts, gemm.dur), (1000, 2));
    let copy = device("Memcpy HtoD (Pageable -> Device)");
    assert_eq!((copy.kind, copy.stream, copy.bytes, copy.ts, copy.dur), (DeviceKind::Memcpy, 17, Some(64), 1002, 2));
    assert_eq!(device("fusion.1").kind, DeviceKind::Annotation);
    assert_eq!((device("while").kind, device("while").device), (DeviceKind::Kernel, 4));
    assert_eq!(device("event 9").kind, DeviceKind::Annotation);
    let host =
        |name: &str| rank.host.iter().find(|event| run.text(event.name) == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!((host("cuLaunchKernel").kind, host("cuLaunchKernel").correlation), (HostKind::Driver, Some(77)));
    assert_eq!((host("train").kind, host("$a.py:1 f").kind), (HostKind::Annotation, HostKind::Python));
    let codes = ["sub_nanosecond", "missing_time", "empty_plane"].map(|code| count(&summary, code));
    assert_eq!(codes, [4, 1, 0]);
    let device = profile.read(Table::Device, &["flow", "args"]).unwrap();
    assert_eq!(device.ints("flow").iter().filter(|&&flow| flow != NO_INT).count(), 1);
    assert!(device.all_texts().iter().any(|text| text == r#"{"hlo_op": "dot.7"}"#));
    for &table in Table::ALL {
        let names: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
        let batch = profile.read(table, &names).unwrap();
        assert!(batch.all_texts().iter().all(|text| !text.contains("hunter2")), "{table:?}");
    }
}

#[test]
fn times_of_1970_are_taken_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let start = 1_700_000_000_000_000_000;
    let environment = named(new().bytes(2, b"Task Environment"), 5, 1, "profile_start_time");
    let environment = environment.message(6, new().int(1, 1).int(3, start));
    for (timestamp, base) in [(5000, start), (start + 5000, 0)] {
        let host = new().bytes(2, b"/host:CPU").message(3, line(1, "t", timestamp).message(4, event(1, 0, 1000)));
        let space = new().message(1, host).bytes(1, &environment.0);
        let (_, profile) = imported(dir.path(), &space.0).unwrap();
        let run = Run::load(&profile, None, Host::Slices).unwrap();
        assert_eq!((run.ranks[0].info.base_ns, run.ranks[0].host[0].ts), (base, start + 5000));
    }
}

#[test]
fn cut_files_keep_their_whole_events_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut threads = line(1, "worker", 0);
    for at in 0..100 {
        threads = threads.message(4, event(1, at * 1000, 500));
    }
    let space = new().message(1, named(new().bytes(2, b"/host:CPU"), 4, 1, "f").message(3, threads)).0;
    let (summary, _) = imported(dir.path(), &space[..space.len() - 1]).unwrap();
    assert_eq!((summary.sources[0].events, count(&summary, "truncated")), (99, 1));
    for bytes in [&b""[..], b"\x00", b"hello, world", b"\x0a\x05ab", &[0xff; 64]] {
        let error = imported(dir.path(), bytes).err().expect("no profile").to_string();
        assert!(error.contains("host.xplane.pb"), "{error}");
    }
    // Times beyond 64 bits of nanoseconds.
    let far = new().bytes(2, b"/host:CPU").message(3, line(1, "t", i64::MAX).message(4, event(1, i64::MAX, 1000)));
    let (summary, _) = imported(dir.path(), &new().message(1, far).0).unwrap();
    assert_eq!(count(&summary, "time_out_of_range"), 1);
}
