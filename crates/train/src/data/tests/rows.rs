//! Labels, filters, limits, splits.

use std::path::Path;

use super::*;
use crate::job::{Format, Keep, LabelNames, SplitBy};

#[test]
fn a_label_outside_the_map_is_located_with_the_nearest() {
    let fixture = csv("label,text\nneg,a\nnge,b\n")
        .with(|table| table.label_names = Some(LabelNames::List(vec!["neg".into(), "pos".into()])));
    assert_eq!(fixture.refusal(), "a.csv:3: label `nge` is none of the known ones: did you mean `neg`?");
    assert_eq!(csv("label,text\n ,a\n").refusal(), "a.csv:2: the row has no label");
}

#[test]
fn labels_of_the_model_hold_unless_the_job_names_others() {
    let fixture = csv("label,text\npos,a\n");
    let model = LabelMap::new(vec!["neg".into(), "pos".into()]).unwrap();
    let loaded = load_job(&fixture.table, fixture.task, 0, Some(&model), &Bytes).unwrap();
    assert_eq!((loaded.labels.len(), classes(&loaded.train)), (2, vec![1]));
    let named = fixture.with(|table| table.label_names = Some(LabelNames::List(vec!["pos".into()])));
    let loaded = load_job(&named.table, named.task, 0, Some(&model), &Bytes).unwrap();
    assert_eq!((loaded.labels.len(), classes(&loaded.train)), (1, vec![0]));
}

#[test]
fn filters_count_what_they_drop() {
    let fixture = csv("label,text\nx,one\ny,one\nx,zw\u{F6}lf\nx,two\n").with(|table| {
        table.keep = Keep::Ascii;
        table.dedup = true;
    });
    let loaded = fixture.load().unwrap();
    assert_eq!(texts(&loaded.train), ["one", "two"]);
    assert_eq!(classes(&loaded.train), [0, 0], "the first of equal texts stays");
    let expected =
        PartCounts { examples: 2, rows: 4, not_ascii: 1, duplicates: 1, longest: 5, ..PartCounts::default() };
    assert_eq!(loaded.train_counts, expected);
}

#[test]
fn nothing_left_is_an_error() {
    let fixture = csv("label,text\nx,\u{F6}\n").with(|table| table.keep = Keep::Ascii);
    assert!(fixture.refusal().starts_with("no training examples are left of 1 rows"));
    let fixture = csv("label,text\nx,a\n").with(|table| table.validation_split = Some(0.001));
    assert!(fixture.refusal().starts_with("no validation examples are left of 1 rows"));
}

#[test]
fn a_long_text_is_cut_and_counted_and_an_endless_one_refused() {
    let long = format!("label,text\nx,{}\nx,short\n", "a".repeat(20_000));
    let counts = csv(&long).load().unwrap().train_counts;
    assert_eq!((counts.truncated, counts.longest), (1, LONGEST as u64));
    let endless = format!("label,text\nx,a\nx,\"{}\n", "a,b\n".repeat(MAX_TEXT_BYTES / 4));
    assert!(csv(&endless).refusal().starts_with("a.csv:3: a text of 1048577 bytes is longer than"));
}

fn numbered(rows: usize) -> String {
    (0..rows).fold("label,text\n".to_owned(), |csv, row| csv + &format!("{},text {row}\n", row % 3))
}

#[test]
fn a_split_by_text_does_not_depend_on_order_or_seed() {
    let forward = csv(&numbered(1000)).with(|table| table.validation_split = Some(0.2));
    let lines: Vec<String> = numbered(1000).lines().skip(1).map(str::to_owned).collect();
    let turned = lines.iter().rev().fold("label,text\n".to_owned(), |csv, line| csv + line + "\n");
    let backward = csv(&turned).with(|table| table.validation_split = Some(0.2));
    let held_out = |fixture: &Fixture, seed| {
        let loaded = load_job(&fixture.table, fixture.task, seed, None, &Bytes).unwrap();
        let validation = loaded.validation.unwrap();
        assert_eq!(validation.len() + loaded.train.len(), 1000);
        let mut texts = texts(&validation);
        texts.sort();
        texts
    };
    let texts = held_out(&forward, 1);
    assert!((150..250).contains(&texts.len()), "{}", texts.len());
    assert_eq!(texts, held_out(&backward, 2));
}

#[test]
fn a_split_by_seed_depends_on_the_seed() {
    let fixture = csv(&numbered(1000)).with(|table| {
        table.validation_split = Some(0.2);
        table.validation_split_by = SplitBy::Seed;
    });
    let held_out = |seed| {
        let loaded = load_job(&fixture.table, fixture.task, seed, None, &Bytes).unwrap();
        texts(&loaded.validation.unwrap())
    };
    assert_eq!(held_out(1), held_out(1));
    assert_ne!(held_out(1), held_out(2));
    assert!((150..250).contains(&held_out(1).len()));
}

#[test]
fn a_limit_leaves_the_validation_rows_alone() {
    let whole = csv(&numbered(100)).with(|table| table.validation_split = Some(0.3));
    let cut = csv(&numbered(100)).with(|table| {
        table.validation_split = Some(0.3);
        table.limit = Some(5);
    });
    assert_eq!(cut.load().unwrap().train.len(), 5);
    assert_eq!(cut.load().unwrap().validation, whole.load().unwrap().validation);
}

#[test]
fn validation_texts_seen_in_training_are_counted() {
    let fixture = Fixture::new(
        Task::Classification,
        &[("a.csv", b"label,text\nx,one\ny,two\n"), ("v.csv", b"label,text\nx,two\nx,three\n")],
    );
    let validation = fixture.path("v.csv");
    let loaded = fixture.with(|table| table.validation = Sources(vec![validation])).load().unwrap();
    assert_eq!(loaded.validation_counts.unwrap().also_in_training, 1);
}

#[test]
fn eval_reads_any_format_with_the_labels_of_the_model() {
    let fixture = Fixture::new(Task::Classification, &[("t_text.txt", b"a\nb\n"), ("t_labels.txt", b"1\nneg\n")]);
    let model = LabelMap::new(vec!["neg".into(), "pos".into()]).unwrap();
    let path = fixture.path("t_text.txt");
    let eval = |labels| load_for_eval(&path, &DataTable::default(), fixture.task, labels, &Bytes);
    let (data, counts) = eval(&model).unwrap();
    assert_eq!((classes(&data), counts.examples), (vec![1, 0], 2));
    let other = LabelMap::new(vec!["neg".into()]).unwrap();
    let message = fixture.plain(eval(&other).unwrap_err());
    assert!(message.starts_with("t_labels.txt:1: label `1` is none of the known ones"), "{message}");
}

/// The shared test data are no part of the project; tests that want them pass over when they are missing.
fn shared(path: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(path);
    if path.exists() {
        return Some(path.display().to_string());
    }
    eprintln!("skipped: {} is not there", path.display());
    None
}

#[test]
fn tweeteval_sentiment_has_the_rows_its_authors_count() {
    let Some(mapping) = shared("tweeteval/sentiment/mapping.txt") else {
        return;
    };
    for (name, counts) in [("val", [312, 869, 819]), ("test", [3972, 5937, 2375])] {
        let Some(path) = shared(&format!("tweeteval/sentiment/{name}_text.txt")) else {
            return;
        };
        let table = DataTable {
            train: Sources(vec![path]),
            label_names: Some(LabelNames::File(mapping.clone().into())),
            format: Format::Pair,
            ..DataTable::default()
        };
        let loaded = load_job(&table, Task::Classification, 0, None, &Bytes).unwrap();
        assert_eq!(loaded.train.targets().label_counts(3), counts);
        assert_eq!(loaded.labels.names(), ["negative", "neutral", "positive"]);
    }
}
