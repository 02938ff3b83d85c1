//! Every damage and oddity that users of other tools have reported, each imported, counted and kept. The names say whose thread
//! describes it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use profile::import::{Options, Summary, import};
use profile::{Flag, Host, Run};
use trace::Profile;
use trace::schema::Table;

struct Imported {
    summary: Summary,
    profile: Profile,
    run: Run,
    _dir: tempfile::TempDir,
}

impl Imported {
    /// Counts by code.
    fn counts(&self) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for line in &self.summary.diagnostics {
            *counts.entry(line.code).or_default() += line.count;
        }
        // How a file without `distributedInfo` gets its rank is not what these tests are about.
        counts.remove("assumed_rank");
        counts
    }

    fn device(&self) -> Vec<(String, i64, i64)> {
        let events = self.run.ranks.iter().flat_map(|rank| &rank.device);
        events.map(|event| (self.run.text(event.name).to_owned(), event.ts, event.dur)).collect()
    }

    fn host(&self) -> Vec<(String, i64, i64)> {
        let events = self.run.ranks.iter().flat_map(|rank| &rank.host);
        events.map(|event| (self.run.text(event.name).to_owned(), event.ts, event.dur)).collect()
    }
}

fn import_files(files: &[(&str, &[u8])]) -> Result<Imported, profile::import::Error> {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    fs::create_dir(&input).unwrap();
    for (name, bytes) in files {
        fs::write(input.join(name), bytes).unwrap();
    }
    let inputs: Vec<PathBuf> = match files {
        [(name, _)] => vec![input.join(name)],
        _ => vec![input],
    };
    let output = dir.path().join("run.profile");
    let summary = import(&inputs, &output, &Options::default())?;
    let profile = Profile::open(&output).unwrap();
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    Ok(Imported { summary, profile, run, _dir: dir })
}

fn import_text(text: &str) -> Imported {
    import_files(&[("trace.json", text.as_bytes())]).unwrap()
}

fn kernel(name: &str, ts: &str, dur: &str, correlation: u32) -> String {
    format!(
        "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"{name}\",\"pid\":0,\"tid\":7,\"ts\":{ts},\"dur\":{dur},\
         \"args\":{{\"stream\":7,\"device\":0,\"correlation\":{correlation}}}}}"
    )
}

fn launch(ts: &str, correlation: u32) -> String {
    format!(
        "{{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":9,\"tid\":9,\"ts\":{ts},\"dur\":1,\
         \"args\":{{\"correlation\":{correlation}}}}}"
    )
}

fn trace(events: &[String]) -> String {
    format!("{{\"traceEvents\": [\n{}\n]}}", events.join(",\n"))
}

#[test]
fn pytorch_130622_perfetto_598_control_bytes_in_a_name_are_kept() {
    let imported =
        import_text(&trace(&[launch("1", 1), kernel("a\u{1}b", "5", "2", 1), kernel("c\u{b}\td", "9", "2", 1)]));
    assert_eq!(imported.counts(), BTreeMap::from([("control_bytes", 2), ("duplicate_correlation", 1)]));
    assert_eq!(imported.device()[0], ("a\u{1}b".into(), 5000, 2000));
    assert_eq!(imported.device()[1].0, "c\u{b}\td");
}

#[test]
fn kineto_1459_an_unescaped_quote_costs_no_neighbour() {
    for separator in [",\n", ","] {
        let broken = kernel("lambda(\"x\", y\")", "5", "2", 1);
        let events = [launch("1", 1), broken, kernel("after", "9", "2", 1), kernel("last", "12", "2", 1)];
        let imported = import_text(&format!("{{\"traceEvents\":[{}]}}", events.join(separator)));
        let names: Vec<String> = imported.device().into_iter().map(|event| event.0).collect();
        assert_eq!(names, ["lambda(\"x\", y\")", "after", "last"], "separated by {separator:?}");
        assert_eq!(imported.counts()["broken_event"], 1);
        assert_eq!(imported.counts().get("unreadable_event"), None);
    }
}

#[test]
fn trace_viewer_145_a_truncated_file_is_loaded_to_its_last_whole_event() {
    let whole = trace(&[launch("1", 1), kernel("a", "5", "2", 1), kernel("b", "9", "2", 1)]);
    let cut = &whole[..whole.len() - 30];
    let imported = import_text(cut);
    assert_eq!(imported.counts(), BTreeMap::from([("truncated", 1)]));
    assert_eq!(imported.device(), [("a".to_owned(), 5000, 2000)]);
    let line = imported.summary.diagnostics.iter().find(|line| line.code == "truncated").unwrap();
    assert_eq!(line.example_at, Some(cut.len() as u64));
    // Only the brackets are missing.
    let imported = import_text(whole.trim_end_matches("\n]}"));
    assert_eq!((imported.device().len(), imported.counts()["truncated"]), (2, 1));
}

#[test]
fn catapult_4633_all_members_of_a_gzip_are_read_and_zstd_as_well() {
    let text = trace(&[launch("1", 1), kernel("a", "5", "2", 1), launch("8", 2), kernel("b", "9", "2", 2)]);
    let mut members = Vec::new();
    for part in text.as_bytes().chunks(50) {
        let mut encoder = flate2::write::GzEncoder::new(&mut members, flate2::Compression::fast());
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap();
    }
    let imported = import_files(&[("trace.json.gz", &members)]).unwrap();
    assert_eq!((imported.device().len(), imported.counts()), (2, BTreeMap::new()));
    let zstd = zstd::encode_all(text.as_bytes(), 3).unwrap();
    assert_eq!(import_files(&[("trace.json.zst", &zstd)]).unwrap().device().len(), 2);
    // A member that is cut off: what came before it counts.
    let imported = import_files(&[("trace.json.gz", &members[..members.len() - 12])]).unwrap();
    assert_eq!(imported.counts()["truncated"], 1);
    assert!(!imported.device().is_empty());
}

#[test]
fn ascend_133_numbers_in_texts_and_large_flow_ids_are_exact() {
    let flow = |phase: &str, ts: &str, id: &str| {
        format!("{{\"ph\":\"{phase}\",\"cat\":\"x\",\"name\":\"x\",\"pid\":9,\"tid\":9,\"ts\":{ts},\"id\":{id}}}")
    };
    let imported = import_text(&trace(&[
        launch("\"1.5\"", 1),
        kernel("a", "\"5\"", "\"2.125\"", 1),
        flow("s", "1", "9007199254740993"),
        flow("f", "2", "9007199254740993"),
        flow("s", "1", "\"0x7f-a\""),
    ]));
    assert_eq!(imported.counts(), BTreeMap::from([("large_flow_id", 2), ("text_number", 3)]));
    assert_eq!(imported.device(), [("a".to_owned(), 5000, 2125)]);
    let flows = imported.profile.read(Table::Flows, &["id", "id_text"]).unwrap();
    assert_eq!(flows.ints("id"), [9_007_199_254_740_993, trace::NO_INT, 9_007_199_254_740_993]);
    assert_eq!(flows.text(flows.texts("id_text")[1]), "0x7f-a");
}

#[test]
fn chakra_167_foreign_json_in_the_folder_is_named_and_skipped() {
    let text = trace(&[launch("1", 1), kernel("a", "5", "2", 1)]);
    let imported = import_files(&[
        ("config.json", b"{\"learning_rate\": 1}"),
        ("list.json", b"[1, 2, {\"x\": 3}]"),
        ("notes.txt", b"hello"),
        ("rank0.json", text.as_bytes()),
    ])
    .unwrap();
    assert_eq!(imported.counts(), BTreeMap::from([("foreign_file", 3)]));
    assert_eq!(imported.summary.sources.len(), 1);
    let error = import_files(&[("config.json", b"{\"learning_rate\": 1}")]).err().unwrap().to_string();
    assert!(error.contains("config.json") && error.contains("no trace"), "{error}");
    let error = import_files(&[("a.txt", b"x"), ("b.txt", b"y")]).err().unwrap().to_string();
    assert!(error.contains("a.txt"), "{error}");
}

#[test]
fn kineto_109_kernels_without_times_are_kept_apart() {
    let imported = import_text(&trace(&[launch("1", 1), kernel("lost", "0", "0", 1), kernel("a", "5", "2", 2)]));
    assert_eq!(imported.counts(), BTreeMap::from([("lost_timestamp", 1), ("without_launch", 1)]));
    let rank = &imported.run.ranks[0];
    assert_eq!(rank.device.iter().filter(|event| event.flag == Flag::LostTimestamp).count(), 1);
    assert_eq!(imported.profile.manifest().first_ns, Some(1000));
}

#[test]
fn tracelens_610_kineto_136_zero_and_negative_durations_are_kept() {
    let events = [launch("1", 1), kernel("zero", "5", "0", 1), kernel("a", "5", "2", 1), kernel("back", "8", "-3", 1)];
    let imported = import_text(&trace(&events));
    assert_eq!(imported.counts()["zero_duration"], 1);
    assert_eq!(imported.counts()["negative_duration"], 1);
    assert_eq!(imported.counts().get("partial_overlap"), None);
    assert_eq!(imported.device().len(), 3);
    assert!(imported.device().contains(&("back".into(), 8000, -3000)));
}

#[test]
fn perfetto_4280_overlapping_kernels_get_rows_of_their_own() {
    let events =
        [kernel("a", "10", "10", 1), kernel("b", "15", "10", 2), kernel("c", "20", "2", 3), kernel("d", "30", "1", 4)];
    let imported = import_text(&trace(&events));
    assert_eq!(imported.counts()["partial_overlap"], 1);
    let rows = imported.profile.read(Table::Device, &["name", "depth"]).unwrap();
    let depths: Vec<(&str, i64)> =
        rows.texts("name").iter().map(|id| rows.text(*id)).zip(rows.ints("depth").iter().copied()).collect();
    assert_eq!(depths, [("a", 0), ("b", 1), ("c", 2), ("d", 0)]);
}

#[test]
fn roctracer_104_a_tie_is_no_overlap() {
    let imported =
        import_text(&trace(&[launch("1", 1), kernel("a", "10.001", "2.5", 1), kernel("b", "12.501", "1", 1)]));
    assert_eq!(imported.counts(), BTreeMap::from([("duplicate_correlation", 1)]));
    let depths = imported.profile.read(Table::Device, &["depth"]).unwrap();
    assert_eq!(depths.ints("depth"), [0, 0]);
}

#[test]
fn perfetto_432_begins_and_ends_are_paired_and_the_rest_is_told() {
    let event = |phase: &str, name: &str, ts: u32| {
        format!("{{\"ph\":\"{phase}\",\"name\":\"{name}\",\"pid\":1,\"tid\":1,\"ts\":{ts},\"args\":{{\"{phase}\":1}}}}")
    };
    let imported = import_text(&trace(&[
        event("B", "outer", 1),
        event("B", "inner", 2),
        event("E", "outer", 5),
        event("E", "", 7),
        event("E", "never begun", 8),
        event("B", "never ended", 9),
        event("B", "x", 12),
        event("E", "x", 12),
    ]));
    assert_eq!(
        imported.counts(),
        BTreeMap::from([("partial_overlap", 1), ("unmatched_begin", 1), ("unmatched_end", 1)])
    );
    let host = imported.host();
    for slice in [("outer", 1000, 4000), ("inner", 2000, 5000), ("x", 12_000, 0), ("never ended", 9000, 3000)] {
        assert!(host.contains(&(slice.0.to_owned(), slice.1, slice.2)), "{slice:?} in {host:?}");
    }
    let rows = imported.profile.read(Table::Host, &["args"]).unwrap();
    assert_eq!(rows.text(rows.texts("args")[0]), "{\"B\":1,\"E\":1}");
    let instants = imported.profile.read(Table::Instants, &["name"]).unwrap();
    assert_eq!(instants.text(instants.texts("name")[0]), "never begun");
}

#[test]
fn asynchronous_events_are_paired_by_id() {
    let event = |phase: &str, id: u32, ts: u32| {
        format!("{{\"ph\":\"{phase}\",\"cat\":\"io\",\"name\":\"read\",\"id\":{id},\"pid\":1,\"tid\":1,\"ts\":{ts}}}")
    };
    let imported = import_text(&trace(&[event("b", 1, 1), event("b", 2, 2), event("e", 1, 5), event("e", 2, 9)]));
    assert_eq!(imported.host(), [("read".to_owned(), 1000, 4000), ("read".to_owned(), 2000, 7000)]);
}

#[test]
fn tracelens_669_durations_that_exceed_the_span_are_told() {
    let imported = import_text(&trace(&[kernel("a", "10", "1000", 1), kernel("b", "11", "1000", 2)]));
    assert_eq!(imported.counts()["sum_exceeds_span"], 1);
}

#[test]
fn perfetto_426_epoch_times_are_exact_to_the_nanosecond() {
    let imported =
        import_text(&trace(&[launch("1712195495519689.047", 1), kernel("a", "1712195495519690.001", "0.690", 1)]));
    assert_eq!(imported.device(), [("a".to_owned(), 1_712_195_495_519_690_001, 690)]);
    let fine = import_text(&trace(&[launch("1.0001", 1)]));
    assert_eq!(fine.counts(), BTreeMap::from([("sub_nanosecond", 1)]));
    let far = import_text(&trace(&[launch("1e30", 1), launch("2", 1), kernel("a", "5", "9e18", 1)]));
    assert_eq!((far.counts()["time_out_of_range"], far.host().len(), far.device().len()), (2, 1, 0));
}

#[test]
fn attention_gym_487_ranks_of_different_bases_are_aligned_by_collective_ends() {
    let rank = |rank: u32, base: i64, shift: f64| {
        let mut events = Vec::new();
        for step in 0..5u32 {
            let ts = 100.0 * f64::from(step) + shift + f64::from(rank * 7 * step % 5);
            let dur = 100.0 * f64::from(step) + shift + 50.0 - ts;
            events.push(kernel("ncclDevKernel_AllReduce", &format!("{ts:.3}"), &format!("{dur:.3}"), step));
        }
        let text = trace(&events);
        let head =
            format!("{{\"distributedInfo\":{{\"rank\":{rank},\"world_size\":2}},\"baseTimeNanoseconds\":{base},");
        text.replacen('{', &head, 1)
    };
    // The second rank's clock is 11.56 s ahead and its base lies in the quarter before.
    let (first, second) = (rank(0, 7_000_000_000_000, 10.0), rank(1, 1_000_000_000_000, 6_011_560_010.0));
    let imported = import_files(&[("a.json", first.as_bytes()), ("b.json", second.as_bytes())]).unwrap();
    let line = &imported.summary.ranks[1];
    assert_eq!((line.offset_ns, line.residual_ns, line.matched_collectives), (-11_560_000_000, Some(0), 5));
    assert_eq!(imported.counts()["different_bases"], 2);
    assert_eq!(imported.run.ranks[1].info.offset_ns, -11_560_000_000);
}

#[test]
fn hta_17_a_rank_that_is_not_stated_comes_from_the_name_or_the_order_and_missing_ones_are_named() {
    let text = trace(&[launch("1", 1), kernel("a", "5", "2", 1)]);
    let stated = text.replacen('{', "{\"distributedInfo\":{\"rank\":3,\"world_size\":8},", 1);
    let imported = import_files(&[
        ("a.json", text.as_bytes()),
        ("run_rank-5.json", text.as_bytes()),
        ("same.json", stated.as_bytes()),
        ("stated.json", stated.as_bytes()),
    ])
    .unwrap();
    let ranks: Vec<(i64, &str)> = imported.summary.ranks.iter().map(|rank| (rank.rank, rank.rank_from)).collect();
    assert_eq!(ranks, [(0, "order"), (1, "order"), (3, "distributedInfo"), (5, "file name")]);
    assert_eq!((imported.counts()["rank_conflict"], imported.counts()["missing_rank"]), (1, 4));
}

#[test]
fn pytorch_184792_192021_correlations_may_repeat_and_kernels_may_come_before_their_launch() {
    let events = [
        launch("10", 1),
        launch("20", 1),
        kernel("a", "12", "2", 1),
        kernel("b", "22", "2", 1),
        kernel("early", "4", "1", 1),
    ];
    let imported = import_text(&trace(&events));
    assert_eq!(imported.counts(), BTreeMap::from([("before_launch", 1), ("duplicate_correlation", 1)]));
    assert_eq!(imported.device().len(), 3);
}

#[test]
fn hta_148_what_a_trace_lacks_is_no_error() {
    assert_eq!(import_text("{\"traceEvents\": []}").counts(), BTreeMap::from([("empty_trace", 1)]));
    let imported = import_text("[{\"ph\":\"X\",\"name\":\"plain\",\"ts\":1,\"dur\":2,\"pid\":1,\"tid\":2}]");
    assert_eq!((imported.host().len(), imported.counts()), (1, BTreeMap::new()));
    let odd = import_text(
        "{\"traceEvents\":[null,7,{\"ph\":\"?\",\"ts\":1},{\"ph\":\"X\",\"name\":\"x\"},{\"ph\":\"X\",\"name\":\"x\",\"ts\":3},\
         {\"ph\":\"X\",\"cat\":\"zzz\",\"name\":7,\"ts\":1,\"dur\":1}]}",
    );
    let counts = odd.counts();
    assert_eq!((counts["unknown_phase"], counts["missing_time"], counts["missing_duration"]), (1, 1, 1));
    assert_eq!((counts["unknown_category"], odd.host().len()), (1, 2));
}

#[test]
fn a_launch_arrow_is_kept_once_and_any_other_as_it_is() {
    let arrow = |phase: &str, id: u32, pid: u32, tid: u32, ts: u32| {
        format!(
            "{{\"ph\":\"{phase}\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":{pid},\"tid\":{tid},\"ts\":{ts}}}"
        )
    };
    let imported = import_text(&trace(&[
        arrow("f", 1, 0, 7, 5),
        launch("1", 1),
        kernel("a", "5", "2", 1),
        arrow("s", 1, 9, 9, 1),
        arrow("s", 4, 9, 9, 1),
    ]));
    let flow = |table| imported.profile.read(table, &["flow"]).unwrap().ints("flow").to_vec();
    assert_eq!((flow(Table::Host), flow(Table::Device)), (vec![1], vec![2]));
    assert_eq!(imported.profile.read(Table::Flows, &["id"]).unwrap().ints("id"), [4]);
    // The stream's arrow came before anything that says it is one.
    assert!(imported.run.tracks.iter().any(|track| track.kind == "stream" && track.stream == Some(7)));
}

#[test]
fn xla_44702_a_trace_cut_at_a_million_events_is_told() {
    let mut text = String::from("[");
    for at in 0..1_000_000 {
        text.push_str(&format!(
            "{}{{\"ph\":\"X\",\"name\":\"x\",\"ts\":{at},\"dur\":1}}",
            if at == 0 { "" } else { "," }
        ));
    }
    text.push(']');
    assert_eq!(import_text(&text).counts(), BTreeMap::from([("million_events", 1)]));
}

#[test]
fn hostile_files_end_in_an_error_or_a_count() {
    let nested = format!("{{\"traceEvents\":[{}{}]}}", "{\"args\":".repeat(100_000), "}".repeat(100_000));
    assert!(import_files(&[("a.json", nested.as_bytes())]).is_err());
    let long = kernel(&"x".repeat(12 << 20), "1", "1", 1);
    let imported = import_text(&trace(&[long, launch("1", 1)]));
    assert_eq!((imported.counts()["oversized_event"], imported.host().len()), (1, 1));
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    bomb.write_all(b"{\"traceEvents\": [").unwrap();
    let blank = vec![b' '; 1 << 20];
    for _ in 0..400 {
        bomb.write_all(&blank).unwrap();
    }
    let error = import_files(&[("bomb.json.gz", &bomb.finish().unwrap())]).err().unwrap().to_string();
    assert!(error.contains("bomb") || error.contains("without an event"), "{error}");
    for bytes in [&b""[..], b"{", b"\x1f\x8b\x08", b"{\"traceEvents\"", b"\xff\xfe{\"", b"PAR1"] {
        assert!(import_files(&[("a.json", bytes)]).is_err(), "{bytes:?}");
    }
    let mut broken = trace(&[launch("1", 1), kernel("a_b", "5", "2", 1)]).into_bytes();
    let at = broken.windows(3).position(|window| window == b"a_b").unwrap();
    broken[at + 1] = 0xff;
    let imported = import_files(&[("a.json", &broken)]).unwrap();
    assert_eq!(imported.counts(), BTreeMap::from([("invalid_utf8", 1)]));
    assert_eq!(imported.device()[0].0, "a\u{fffd}b");
}

#[test]
fn secrets_of_the_profiled_process_are_not_copied() {
    let text = trace(&[launch("1", 1)]);
    let head = "{\"metadata\":{\"system\":{\"env\":{\"HF_TOKEN\":\"hf_planted\"}}},\"wandb_api_key\":\"planted too\",\"note\":\"kept\",";
    let imported = import_text(&text.replacen('{', head, 1));
    assert_eq!(imported.counts(), BTreeMap::from([("secrets_skipped", 2)]));
    let rows = imported.profile.read(Table::Metadata, &["value"]).unwrap();
    let values: Vec<&str> = rows.texts("value").iter().map(|id| rows.text(*id)).collect();
    assert!(values.iter().all(|value| !value.contains("planted")), "{values:?}");
    assert!(values.contains(&"\"kept\""), "{values:?}");
}

#[test]
fn a_spill_that_cannot_be_written_is_an_error_and_not_a_hang() {
    // More chunks than the queue holds, and tracks without end: every parser gives up.
    let mut text = String::from("[");
    for at in 0..600_000 {
        text.push_str(&format!(
            "{}{{\"ph\":\"X\",\"name\":\"x\",\"ts\":{at},\"dur\":1,\"pid\":1,\"tid\":{at}}}",
            if at == 0 { "" } else { "," }
        ));
    }
    text.push(']');
    let error = import_files(&[("a.json", text.as_bytes())]).err().unwrap().to_string();
    assert!(error.contains("tracks"), "{error}");
}

#[test]
fn traces_of_different_jobs_are_told() {
    let world = |rank: u32, world: u32| {
        let head = format!("{{\"distributedInfo\":{{\"rank\":{rank},\"world_size\":{world}}},");
        trace(&[launch("1", 1)]).replacen('{', &head, 1)
    };
    let (first, second) = (world(0, 2), world(1, 8));
    let imported = import_files(&[("a.json", first.as_bytes()), ("b.json", second.as_bytes())]).unwrap();
    assert_eq!(imported.counts()["different_jobs"], 2);
}

#[test]
fn ends_and_arrows_beyond_the_bounds_of_the_search_are_kept() {
    let event = |phase: &str, name: &str, ts: u32| {
        format!("{{\"ph\":\"{phase}\",\"name\":\"{name}\",\"pid\":1,\"tid\":1,\"ts\":{ts}}}")
    };
    let mut events = vec![event("B", "outer", 0)];
    events.extend((1..=5000).map(|ts| event("B", "inner", ts)));
    events.push(event("E", "outer", 6000));
    let imported = import_text(&trace(&events));
    assert_eq!(imported.counts(), BTreeMap::from([("unmatched_begin", 5001), ("unmatched_end", 1)]));

    let arrow = |id: u32| {
        format!("{{\"ph\":\"s\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":9,\"tid\":9,\"ts\":1}}")
    };
    let events: Vec<String> = (0..5000).flat_map(|id| [launch("1", id), arrow(id)]).collect();
    let imported = import_text(&trace(&events));
    let flows = imported.profile.read(Table::Flows, &["id"]).unwrap().len();
    let implied = imported.profile.read(Table::Host, &["flow"]).unwrap();
    assert!(flows > 0 && flows < 5000);
    assert_eq!(flows + implied.ints("flow").iter().filter(|flow| **flow == 1).count(), 5000);
}

#[test]
fn a_failed_import_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("x.json"), dir.path().join("run.profile"));
    fs::write(&input, "{}").unwrap();
    assert!(import(std::slice::from_ref(&input), &output, &Options::default()).is_err());
    assert!(!output.exists());
    fs::write(&input, trace(&[launch("1", 1)])).unwrap();
    import(std::slice::from_ref(&input), &output, &Options::default()).unwrap();
    let names: Vec<String> =
        fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
    let error = import(&[input], &output, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
    assert!(import(&[Path::new("/nonexistent").to_owned()], &output, &Options::default()).is_err());
}
