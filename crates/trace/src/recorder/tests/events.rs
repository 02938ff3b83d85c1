//! Every kind of event comes back as it was recorded.

use super::*;
use crate::recorder::clock::monotonic_ns;

#[test]
fn host_slices_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let before = monotonic_ns();
    let long = "x".repeat(1000);
    let (profile, summary) = record(quiet(&dir.path().join("p")), |recorder| {
        let lane = recorder.lane("main");
        let step = lane.step(Name::new("step"), 12);
        {
            let _forward = lane.span(Name::new("forward"));
            let _operator = lane.span_of("block \"7\"");
        }
        lane.wait(Name::new("barrier")).end_with(&[]);
        lane.annotate(Name::with_values("save", &["bytes", "files"])).end_with(&[1 << 40, -2]);
        lane.span_of("dynamic").end_with(&[5]);
        drop(lane.annotation(&long));
        drop(step);
    });
    assert_eq!((summary.recorded, summary.dropped), (7, 0));
    let host = all(&profile, Table::Host);
    let names: Vec<&str> = texts(&host, "name").into_iter().flatten().collect();
    assert_eq!(names, ["step_12", "forward", "block \"7\"", "barrier", "save", "dynamic", &long[..256]]);
    assert_eq!(host.ints("depth"), [0, 1, 2, 1, 1, 1, 1]);
    let kinds: Vec<&str> = texts(&host, "kind").into_iter().flatten().collect();
    assert_eq!(kinds, ["annotation", "span", "span", "sync", "annotation", "span", "annotation"]);
    let args = texts(&host, "args");
    assert_eq!(args[4], Some("{\"bytes\":1099511627776,\"files\":-2}"));
    assert_eq!(args[5], Some("{\"0\":5}"));
    assert_eq!(args[0], None);
    let (ts, dur) = (host.ints("ts"), host.ints("dur"));
    assert!(ts.windows(2).all(|pair| pair[0] <= pair[1]), "{ts:?}");
    assert!(ts[0] >= before - 100_000 && ts[0] + dur[0] <= monotonic_ns() + 100_000, "on the system's clock");
    // What is inside a slice begins and ends inside it.
    for inner in 1..7 {
        assert!(ts[0] <= ts[inner] && ts[inner] + dur[inner] <= ts[0] + dur[0]);
    }
    assert!(ts[1] <= ts[2] && ts[2] + dur[2] <= ts[1] + dur[1]);
    let manifest = profile.manifest();
    assert_eq!((manifest.first_ns, manifest.last_ns), (Some(ts[0]), Some(ts[0] + dur[0])));
    assert_eq!((&manifest.ranks[..], manifest.devices, manifest.state), (&[0i64][..], 0, crate::State::Complete));
}

#[test]
fn launches_and_device_work_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { rank: 3, world_size: 8, ..quiet(&dir.path().join("p")) };
    let (profile, _) = record(options, |recorder| {
        let device = recorder.device(1, "cpu", Some(1 << 34));
        let (compute, side) = (recorder.stream(device, 7, "compute"), recorder.stream(device, 9, "side"));
        let lane = recorder.lane("main");
        let (launch, correlation) = lane.launch(Name::new("launch"));
        let from = lane.now();
        drop(launch);
        let to = lane.now();
        let work = |name, stream, correlation| Work { stream, name: Name::new(name), from, to, correlation };
        let linear =
            Work { name: Name::with_values("linear", &["rows", "in", "out"]), ..work("", compute, correlation) };
        lane.kernel(linear, Some(Name::new("f32")), &[64, 384, 1536]);
        // At the same time on the same stream: a row of its own.
        lane.kernel(work("gelu", compute, correlation), None, &[]);
        lane.copy(work("Memcpy HtoD", side, None), 4096);
        lane.fill(work("Memset", side, None), 128);
        let group = Name::new("data");
        let collective = Collective { group, sequence: 41, bytes: 1 << 20, dtype: Some(Name::new("bf16")) };
        lane.collective(work("all_reduce", side, None), &collective);
        let values: Vec<i64> = (1..=9).collect();
        lane.kernel(work("many", compute, None), None, &values);
    });
    let host = all(&profile, Table::Host);
    assert_eq!(texts(&host, "kind"), [Some("runtime")]);
    let correlation = host.ints("correlation")[0];
    assert!(some(correlation).is_some());

    let device = all(&profile, Table::Device);
    let names: Vec<&str> = texts(&device, "name").into_iter().flatten().collect();
    assert_eq!(names, ["linear", "gelu", "many", "Memcpy HtoD", "Memset", "all_reduce"]);
    let kinds: Vec<&str> = texts(&device, "kind").into_iter().flatten().collect();
    assert_eq!(kinds, ["kernel", "kernel", "kernel", "memcpy", "memset", "collective"]);
    assert_eq!(device.ints("depth"), [0, 1, 2, 0, 1, 2]);
    assert_eq!(device.ints("stream"), [7, 7, 7, 9, 9, 9]);
    assert_eq!(device.ints("device"), [1; 6]);
    let correlations: Vec<Option<i64>> = device.ints("correlation").iter().map(|&value| some(value)).collect();
    assert_eq!(correlations, [Some(correlation), Some(correlation), None, None, None, None]);
    let args = texts(&device, "args");
    assert_eq!(args[0], Some("{\"rows\":64,\"in\":384,\"out\":1536}"));
    assert_eq!((args[1], args[3]), (None, None));
    assert_eq!(args[2].unwrap().matches(':').count(), 8, "eight values are kept: {args:?}");
    assert_eq!(texts(&device, "dtype"), [Some("f32"), None, None, None, None, Some("bf16")]);
    let bytes: Vec<Option<i64>> = device.ints("bytes").iter().map(|&value| some(value)).collect();
    assert_eq!(bytes, [None, None, None, Some(4096), Some(128), Some(1 << 20)]);
    assert_eq!((texts(&device, "group")[5], some(device.ints("sequence")[5])), (Some("data"), Some(41)));

    let tracks = all(&profile, Table::Tracks);
    assert_eq!(texts(&tracks, "kind"), [Some("stream"), Some("stream"), Some("thread")]);
    assert_eq!(texts(&tracks, "thread_name"), [Some("compute"), Some("side"), Some("main")]);
    assert!(tracks.ints("track").iter().all(|track| track >> 20 == 3), "tracks of rank 3");
    assert_eq!(device.ints("track")[0], tracks.ints("track")[0]);
    assert_eq!(host.ints("track")[0], tracks.ints("track")[2]);
    let devices = all(&profile, Table::Devices);
    assert_eq!((texts(&devices, "name"), devices.ints("memory_bytes")), (vec![Some("cpu")], &[1i64 << 34][..]));
    assert_eq!((profile.manifest().devices, &profile.manifest().ranks[..]), (1, &[3i64][..]));

    let ranks = all(&profile, Table::Ranks);
    assert_eq!(ranks.ints("rank").last(), Some(&3));
    assert_eq!(ranks.ints("world_size").last(), Some(&8));
    let last = ranks.len() - 1;
    let wall = device.ints("ts")[0] + ranks.ints("wall_offset_ns")[last];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    assert!((now - wall).abs() < 60_000_000_000, "{now} {wall}");
    let first = profile.manifest().first_ns;
    assert_eq!(some(ranks.ints("first_ns")[last]), first);
}

#[test]
fn points_values_and_memory_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let (profile, summary) = record(quiet(&dir.path().join("p")), |recorder| {
        let lane = recorder.lane("main");
        lane.instant(Name::new("checkpoint"));
        lane.instant_of("loss is not finite at update 7, which is a long text of more than one slot");
        let counter = Counter::new("pool", "live", "B");
        lane.counter(counter, 1.5e9);
        lane.counter(counter, -0.25);
        let memory = Memory {
            kind: MemoryKind::Allocated,
            address: Some(u64::MAX - 1),
            bytes: Some(4096),
            allocated: Some(8192),
            reserved: None,
            device: Some(2),
        };
        lane.memory(&memory);
        lane.memory(&Memory { kind: MemoryKind::Freed, address: None, bytes: Some(-4096), ..memory });
        lane.memory(&Memory { kind: MemoryKind::HighWater, reserved: Some(0), device: None, ..memory });
    });
    assert_eq!(summary.recorded, 7);
    let instants = all(&profile, Table::Instants);
    assert_eq!(texts(&instants, "name")[0], Some("checkpoint"));
    assert!(texts(&instants, "name")[1].unwrap().ends_with("of more than one slot"));
    let counters = all(&profile, Table::Counters);
    assert_eq!(counters.floats("value"), [1.5e9, -0.25]);
    let words = ["name", "series", "unit"].map(|column| texts(&counters, column)[1]);
    assert_eq!(words, [Some("pool"), Some("live"), Some("B")]);
    let memory = all(&profile, Table::Memory);
    assert_eq!(texts(&memory, "name"), [Some("alloc"), Some("free"), Some("high_water")]);
    let column = |name: &str| memory.ints(name).iter().map(|&value| some(value)).collect::<Vec<_>>();
    assert_eq!(column("address"), [Some(-2), None, Some(-2)]);
    assert_eq!(column("bytes"), [Some(4096), Some(-4096), Some(4096)]);
    assert_eq!(column("reserved"), [None, None, Some(0)]);
    assert_eq!(column("device"), [Some(2), Some(2), None]);
}

#[test]
fn the_host_is_sampled_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let every = Duration::from_millis(20);
    let options = Options { host_counters: Some(every), ..Options::new(&dir.path().join("p"), "test") };
    let (profile, summary) = record(options, |_| std::thread::sleep(Duration::from_millis(200)));
    assert_eq!(summary.recorded, 0, "samples are no events of the program");
    let counters = all(&profile, Table::Counters);
    let names = texts(&counters, "name");
    let count = |name: &str| names.iter().filter(|found| **found == Some(name)).count();
    assert!(count("process_memory") >= 3 && count("process_cpu_utilisation") >= 3, "{names:?}");
    let tracks = all(&profile, Table::Tracks);
    assert_eq!(
        (texts(&tracks, "kind"), texts(&tracks, "thread_name")),
        (vec![Some("counter")], vec![Some("host counters")])
    );
    // The processor's counters are there, or the profile says why they are not.
    let diagnostics = all(&profile, Table::Diagnostics);
    let codes = texts(&diagnostics, "code");
    let absent = codes.iter().position(|code| *code == Some("hardware_counters_absent"));
    let hardware = ["cycles", "instructions", "llc_misses", "itlb_misses"];
    let there = hardware.iter().filter(|name| count(name) > 0).count() as i64;
    assert_eq!(there + absent.map_or(0, |row| diagnostics.ints("count")[row]), 4);
    if let Some(row) = absent {
        assert!(texts(&diagnostics, "example")[row].unwrap().contains("perf_event_open: "));
    }
}

#[test]
fn a_handle_that_is_off_records_nothing_and_works() {
    let handle = Handle::off();
    let name = Name::new("nothing");
    let device = handle.device(0, "cpu", None);
    let stream = handle.stream(device, 0, "compute");
    handle.here(|lane| {
        assert!(!lane.is_on());
        let (span, correlation) = lane.launch(name);
        assert_eq!(correlation, None);
        lane.kernel(Work { stream, name, from: lane.now(), to: lane.now(), correlation }, None, &[1]);
        span.end_with(&[1, 2]);
        drop((lane.span(name), lane.span_of("text")));
        lane.instant(name);
        lane.counter(Counter::new("a", "", "1"), 1.0);
    });
}

#[test]
fn what_is_in_the_way_stays() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine"), "").unwrap();
    assert!(matches!(Recorder::start(quiet(dir.path())), Err(Error::Exists { .. })));
}
