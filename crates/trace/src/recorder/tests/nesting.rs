//! Whatever order spans end in, slices of a row never overlap, and what is opened inside lies inside.

use proptest::prelude::*;

use super::*;

/// Asserts that slices of one row of a track do not overlap.
pub fn check_rows(batch: &Batch) {
    let (track, depth, ts, dur) = (batch.ints("track"), batch.ints("depth"), batch.ints("ts"), batch.ints("dur"));
    let mut rows: Vec<(i64, i64, i64, i64)> =
        (0..batch.len()).map(|row| (track[row], depth[row], ts[row], ts[row] + dur[row])).collect();
    rows.sort_unstable();
    for pair in rows.windows(2) {
        let [(track, row, _, end), (next_track, next_row, start, _)] = [pair[0], pair[1]];
        assert!((track, row) != (next_track, next_row) || end <= start, "row {row} of track {track}: {end} > {start}");
    }
}

/// What a program does with its spans.
#[derive(Clone, Debug)]
enum Step {
    Open,
    /// Ends one of the open spans.
    Close(usize),
    /// Device work that lasts from some moment before to now.
    Work(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Open),
        2 => any::<usize>().prop_map(Step::Close),
        1 => any::<usize>().prop_map(Step::Work),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn rows_never_overlap(steps in steps(), segment_rows in 1usize..40) {
        let dir = tempfile::tempdir().unwrap();
        let mut emitted = 0;
        let options = Options { segment_rows, ..quiet(&dir.path().join("p")) };
        let (profile, summary) = record(options, |recorder| {
            let stream = recorder.stream(recorder.device(0, "cpu", None), 0, "compute");
            let lane = recorder.lane("main");
            let (mut open, mut moments) = (Vec::new(), vec![lane.now()]);
            for step in &steps {
                match step {
                    Step::Open => open.push(lane.span(Name::new("span"))),
                    Step::Close(which) if !open.is_empty() => drop(open.remove(which % open.len())),
                    Step::Close(_) => continue,
                    Step::Work(since) => {
                        let from = moments[since % moments.len()];
                        let work = Work { stream, name: Name::new("work"), from, to: lane.now(), correlation: None };
                        lane.kernel(work, None, &[]);
                    }
                }
                emitted += u64::from(!matches!(step, Step::Close(_)));
                moments.push(lane.now());
            }
        });
        prop_assert_eq!(summary.recorded + summary.dropped, emitted);
        check_rows(&all(&profile, Table::Host));
        check_rows(&all(&profile, Table::Device));
    }
}
