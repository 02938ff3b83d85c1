//! Data that are wrong, and data that only look so.

use serde_json::json;

use crate::common::{Yard, sentiments, tsv};

/// What training says of this `train.tsv`.
#[track_caller]
fn refuse(yard: &Yard, content: impl AsRef<[u8]>, parts: &[&str]) {
    yard.write("train.tsv", content);
    yard.train(&["batch.size=2", "data.validation=[]"]).refused(parts);
    assert!(!yard.path("runs").exists(), "nothing was begun");
}

#[test]
fn an_empty_file() {
    let yard = Yard::trained();
    yard.write("empty.tsv", "");
    yard.write("header.csv", "text,label\n");
    yard.write("empty_text.txt", "");
    yard.write("empty_labels.txt", "");
    for file in ["empty.tsv", "header.csv", "empty_text.txt"] {
        yard.run(&["eval", "runs/job", file, "--json"]).refused(&[file, "holds no examples"]);
        yard.train(&[&format!("data.train={file}"), "out=new"]).refused(&[file, "holds no examples"]);
    }
}

#[test]
fn a_label_outside_the_map() {
    let yard = Yard::trained();
    yard.write("rows.tsv", "text\tlabel\na good train\tup\na bad train\tdwon\n");
    yard.run(&["eval", "runs/job", "rows.tsv"]).refused(&["rows.tsv:3: label `dwon`", "did you mean `down`?"]);
    yard.write("rows.tsv", "text\tlabel\na good train\t7\n");
    yard.run(&["eval", "runs/job", "rows.tsv"]).refused(&["rows.tsv:2: label `7` is none of the known ones: down, up"]);
    let names = r#"data.label_names=["up", "sideways"]"#;
    yard.train(&[names, "out=new"])
        .refused(&["train.tsv:3: label `down`", "up, sideways (from data.label_names, else from the model)"]);
}

#[test]
fn a_row_with_too_few_or_too_many_columns() {
    let yard = Yard::new();
    refuse(
        &yard,
        "text\tlabel\na train\tup\na station\n",
        &["train.tsv:3: the row has 1 column, but column 1 (counted from 0) is needed", "tabs"],
    );
    refuse(&yard, "text\tlabel\na\ttrain\tup\n", &["train.tsv:2: the row has 3 columns, the header 2", "tabs"]);
    yard.write("rows.csv", "text,label\na train, it was,up\n");
    yard.train(&["data.train=rows.csv"]).refused(&["rows.csv:2: the row has 3 columns", "must stand in quotes"]);
}

#[test]
fn a_column_that_is_not_there() {
    let yard = Yard::new();
    refuse(&yard, "texts\tlabel\na train\tup\n", &["train.tsv:1: no column `text`", "did you mean `texts`?"]);
    yard.write("rows.jsonl", "{\"text\": \"a train\"}\n");
    yard.train(&["data.train=rows.jsonl"]).refused(&["rows.jsonl:1: no field `label`", "the object has: text"]);
}

#[test]
fn bytes_that_are_not_utf_8() {
    let yard = Yard::new();
    let bytes = b"text\tlabel\na good train\tup\na caf\xe9\tdown\n";
    refuse(&yard, bytes, &["train.tsv:3: byte 32 of the file (0xE9) is not valid utf-8", "data.encoding"]);
    // Either of what the message advises.
    yard.train(&["data.encoding=latin1", "batch.size=2", "out=latin"]).ok();
    yard.train(&["data.encoding=utf-8-lossy", "batch.size=2", "out=lossy"]).ok();
}

#[test]
fn a_byte_order_mark_and_carriage_returns_are_no_part_of_a_cell() {
    let yard = Yard::trained();
    let rows = sentiments(12, 9);
    let lines = |file: &str| format!("\u{feff}{}", file.replace('\n', "\r\n"));
    let csv = rows.iter().fold("text,label\n".to_string(), |all, (text, label)| all + &format!("{text},{label}\n"));
    let jsonl: String =
        rows.iter().map(|(text, label)| format!("{}\n", json!({"text": text, "label": label}))).collect();
    let column =
        |of: fn(&(String, String)) -> &String| rows.iter().map(|row| format!("{}\n", of(row))).collect::<String>();
    yard.write("plain.tsv", tsv(&rows));
    yard.write("rows.tsv", lines(&tsv(&rows)));
    yard.write("rows.csv", lines(&csv));
    yard.write("rows.jsonl", lines(&jsonl));
    yard.write("rows_text.txt", lines(&column(|row| &row.0)));
    yard.write("rows_labels.txt", lines(&column(|row| &row.1)));
    let plain = yard.run(&["eval", "runs/job", "plain.tsv", "--json"]).object();
    for file in ["rows.tsv", "rows.csv", "rows.jsonl", "rows_text.txt"] {
        assert_eq!(yard.run(&["eval", "runs/job", file, "--json"]).object(), plain, "{file}");
    }
}

#[test]
fn a_blank_line_in_a_pair_of_files_is_a_row() {
    let yard = Yard::trained();
    yard.write("rows_text.txt", "a good train\n\na bad train\n");
    yard.write("rows_labels.txt", "up\nup\ndown\n");
    assert_eq!(yard.run(&["eval", "runs/job", "rows_text.txt", "--json"]).object()["examples"], 3);
}

#[test]
fn a_pair_of_files_of_unequal_length() {
    let yard = Yard::trained();
    yard.write("rows_text.txt", "a good train\na bad train\n");
    yard.write("rows_labels.txt", "up\n");
    let parts = ["rows_text.txt has 2 rows but rows_labels.txt has 1", "each text needs one label line"];
    yard.run(&["eval", "runs/job", "rows_text.txt"]).refused(&parts);
    std::fs::remove_file(yard.path("rows_labels.txt")).unwrap();
    yard.run(&["eval", "runs/job", "rows_text.txt"]).refused(&["rows_labels.txt does not exist"]);
}

#[test]
fn texts_of_no_and_of_20000_characters_are_trained_on() {
    let yard = Yard::new();
    let mut rows = sentiments(96, 1);
    rows[0].0 = String::new();
    rows[3].0 = "bad ".repeat(5000);
    yard.write("train.tsv", tsv(&rows));
    let ran = yard.train(&[]).ok();
    assert!(ran.stderr.contains("1 of 96 training texts were cut"), "{}", ran.stderr);
    assert_eq!(ran.object()["steps"], 120);
}

#[test]
fn a_text_that_leaves_a_model_without_a_single_token() {
    let yard = Yard::trained();
    yard.copy_dir("runs/job/model", "bare");
    let mut tokenizer = yard.json("bare/tokenizer.json");
    tokenizer["post_processor"] = json!(null);
    yard.write("bare/tokenizer.json", tokenizer.to_string());
    let problem = "the text has no tokens, and this tokenizer adds none of its own";
    yard.run(&["predict", "bare", "a good train", ""]).refused(&[&format!("text 2: {problem}")]);
    yard.write("rows.tsv", "text\tlabel\na train\tup\n\tdown\n");
    yard.run(&["eval", "bare", "rows.tsv"]).refused(&["rows.tsv:3:", problem]);
    yard.train(&["model=bare", "data.train=rows.tsv", "out=new"]).refused(&["rows.tsv:3:", problem]);
}

#[test]
fn a_label_that_is_missing_or_of_the_wrong_kind() {
    let yard = Yard::new();
    refuse(&yard, "text\tlabel\na train\tup\na station\t\n", &["train.tsv:3: the row has no label"]);
    refuse(&yard, "text\tlabel\na train\tup\na station\tup\n", &["needs two labels at least", "only: up"]);
    yard.write("train.tsv", "text\tlabel\na train\t1.5\na station\thigh\n");
    yard.train(&["task=regression"]).refused(&["train.tsv:3: label `high` is not a finite number"]);
    yard.write("rows.jsonl", "{\"text\": \"a train\", \"label\": [\"up\"]}\n");
    yard.train(&["data.train=rows.jsonl"]).refused(&["rows.jsonl:1: field `label` is a list"]);
    yard.write("rows.jsonl", "{\"text\": \"a train\", \"label\": 1\n");
    yard.train(&["data.train=rows.jsonl"]).refused(&["rows.jsonl:1: not a JSON object", "at column"]);
}

#[test]
fn a_file_that_is_not_there() {
    let yard = Yard::new();
    yard.train(&["data.train=tweets/*.tsv"]).refused(&["no data file tweets/*.tsv (tried /"]);
    yard.train(&["data.train=base"]).refused(&["base is a directory", "base/*.csv"]);
    yard.write("rows.dat", "text\tlabel\n");
    yard.train(&["data.train=rows.dat"]).refused(&["cannot tell the format of rows.dat", "data.format"]);
}
