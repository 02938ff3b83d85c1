//! One format after the other.

use proptest::prelude::*;

use super::*;
use crate::job::{Column, LabelNames};

#[test]
fn csv_reads_named_columns_quotes_bare_cr_crlf_and_bom() {
    let content = "\u{FEFF}label,confidence,text\r\nneg,1,\"one\rtwo, \"\"three\"\"\"\r\npos,,four";
    let loaded = csv(content).load().unwrap();
    assert_eq!(texts(&loaded.train), ["one\rtwo, \"three\"", "four"]);
    assert_eq!(loaded.labels.names(), ["neg", "pos"]);
    assert_eq!(classes(&loaded.train), [0, 1]);
}

#[test]
fn columns_may_be_indices_and_the_header_may_be_missing() {
    let fixture = csv("neg,one\npos,two\n").with(|table| {
        table.header = false;
        table.text = Some(Column::Index(1));
        table.label = Some(Column::Index(0));
    });
    assert_eq!(texts(&fixture.load().unwrap().train), ["one", "two"]);
    let named = csv("neg,one\n").with(|table| table.header = false);
    assert_eq!(
        named.refusal(),
        "a.csv: column `text` (data.text) cannot be found by name in a file without a header; give its index from 0"
    );
}

#[test]
fn tsv_takes_quotes_as_they_are_and_a_second_text() {
    let content = b"text\tother\tlabel\r\n\"a\"\tb\"b\t1\r\n\r\nc\td\t0\r\n";
    let fixture = Fixture::new(Task::Classification, &[("a.tsv", content)])
        .with(|table| table.text_pair = Some(Column::Name("other".into())));
    let loaded = fixture.load().unwrap();
    assert_eq!(texts(&loaded.train), ["\"a\"b\"b", "cd"]);
    assert_eq!(loaded.train.example(0).second_from, 4);
}

#[test]
fn a_row_with_the_wrong_number_of_columns_is_located() {
    assert_eq!(
        csv("label,text\nneg,\"a\nb\"\npos\n").refusal(),
        "a.csv:4: the row has 1 column, but column 1 (counted from 0) is needed; commas separate columns"
    );
    assert_eq!(
        csv("label,text\nneg,one, two\n").refusal(),
        "a.csv:2: the row has 3 columns, the header 2; a text that holds commas must stand in quotes"
    );
}

#[test]
fn a_missing_column_is_named_with_those_there_are() {
    assert_eq!(
        csv("lable,text\nneg,a\n").refusal(),
        "a.csv:1: no column `label` (for data.label); the header has: lable, text; did you mean `lable`?"
    );
}

#[test]
fn a_file_without_examples_is_refused() {
    for content in ["", "label,text\n", "\u{FEFF}"] {
        assert_eq!(csv(content).refusal(), "a.csv holds no examples");
    }
}

#[test]
fn a_file_that_is_not_utf8_is_located_by_byte() {
    let fixture = Fixture::new(Task::Classification, &[("a.csv", b"label,text\nneg,it\xD5s\n")]);
    let message = fixture.refusal();
    assert!(
        message.starts_with("a.csv:2: byte 17 of the file (0xD5) is not valid utf-8; set data.encoding"),
        "{message}"
    );
    let mac = fixture.with(|table| table.encoding = "macintosh".into());
    assert_eq!(texts(&mac.load().unwrap().train), ["it\u{2019}s"]);
}

#[test]
fn a_pair_of_files_keeps_blank_lines_and_splits_on_line_feeds_only() {
    let texts_file = "one\u{2028}two\u{B}\r\n\nthree\rfour".as_bytes();
    let fixture = Fixture::new(
        Task::Classification,
        &[("val_text.txt", texts_file), ("val_labels.txt", b"2\n0\n1\n"), ("mapping.txt", b"0\tneg\n1\tneu\n2\tpos\n")],
    );
    let mapping = fixture.path("mapping.txt");
    let fixture = fixture.with(|table| table.label_names = Some(LabelNames::File(mapping.into())));
    let loaded = fixture.load().unwrap();
    assert_eq!(texts(&loaded.train), ["one\u{2028}two\u{B}", "", "three\rfour"]);
    assert_eq!(loaded.labels.names(), ["neg", "neu", "pos"]);
    assert_eq!(classes(&loaded.train), [2, 0, 1]);
    assert_eq!(loaded.train.example(1).tokens, [START, END], "an empty text has special tokens only");
}

#[test]
fn a_pair_of_unequal_files_names_both_counts() {
    let fixture = Fixture::new(Task::Classification, &[("x_text.txt", b"a\nb\n"), ("x_labels.txt", b"0\n1\n\n")]);
    assert_eq!(fixture.refusal(), "x_text.txt has 2 rows but x_labels.txt has 3; each text needs one label line");
}

#[test]
fn the_labels_of_a_pair_are_sought_beside_it_or_named() {
    let fixture = Fixture::new(Task::Classification, &[("a.txt", b"one\n"), ("b.lab", b"0\n")]);
    assert!(fixture.refusal().starts_with("no labels for a.txt"), "{}", fixture.refusal());
    let both = format!("{},{}", fixture.path("a.txt"), fixture.path("b.lab"));
    let fixture = fixture.with(|table| table.train = Sources(vec![both]));
    assert_eq!(texts(&fixture.load().unwrap().train), ["one"]);
    let lost = Fixture::new(Task::Classification, &[("x_text.txt", b"one\n")]);
    assert!(lost.refusal().contains("x_labels.txt does not exist; name both as texts.txt,labels.txt"));
}

#[test]
fn globs_are_read_in_order_and_missing_files_named_as_tried() {
    let fixture = Fixture::new(
        Task::Classification,
        &[("b.csv", b"label,text\nx,2\n"), ("a.csv", b"label,text\ny,1\n"), ("c.tsv", b"label\ttext\nx\t3\n")],
    );
    let glob = fixture.path("*sv");
    let fixture = fixture.with(|table| table.train = Sources(vec![glob]));
    assert_eq!(texts(&fixture.load().unwrap().train), ["1", "2", "3"]);

    let missing = csv("").with(|table| table.train = Sources(vec!["no/such-*.csv".into()]));
    let tried = std::env::current_dir().unwrap().join("no/such-*.csv");
    assert!(missing.refusal().starts_with(&format!("no data file no/such-*.csv (tried {}", tried.display())));
    let folder = fixture.path("");
    let folder = fixture.with(|table| table.train = Sources(vec![folder]));
    assert!(folder.refusal().contains("is a directory; name its files with a glob"));
    let odd = Fixture::new(Task::Classification, &[("a.dat", b"x")]);
    assert!(odd.refusal().contains("cannot tell the format of a.dat"));
}

#[test]
fn json_lines_take_strings_numbers_and_booleans_as_labels() {
    let content = b"{\"text\": \"a\", \"label\": \"1\"}\n\n{\"label\": 0, \"text\": \"b\", \"more\": [1]}\r\n";
    let loaded = Fixture::new(Task::Classification, &[("a.jsonl", content)]).load().unwrap();
    assert_eq!((texts(&loaded.train), classes(&loaded.train)), (vec!["a".into(), "b".into()], vec![1, 0]));
}

#[test]
fn wrong_json_lines_are_located() {
    for (line, expected) in [
        ("{\"text\": \"a\"", "a.jsonl:2: not a JSON object: EOF while parsing an object at column 12"),
        ("[1]", "a.jsonl:2: not a JSON object: invalid type: sequence, expected a map at column 0"),
        ("{\"text\": \"a\"}", "a.jsonl:2: no field `label` (for data.label); the object has: text"),
        ("{\"text\": 3, \"label\": 1}", "a.jsonl:2: field `text` is a number, expected a string"),
        ("{\"text\": \"a\", \"label\": null}", "a.jsonl:2: the row has no label"),
        (
            "{\"text\": \"a\", \"label\": 0.5}",
            "a.jsonl:2: field `label` is a number, expected a string, a whole number or a boolean",
        ),
    ] {
        let content = format!("{{\"text\": \"a\", \"label\": 1}}\n{line}\n");
        let fixture = Fixture::new(Task::Classification, &[("a.jsonl", content.as_bytes())]);
        assert_eq!(fixture.refusal(), expected);
    }
}

#[test]
fn several_labels_come_as_a_list_or_in_one_cell() {
    let jsonl = b"{\"text\": \"a\", \"label\": [\"y\", \"x\", \"y\"]}\n{\"text\": \"b\", \"label\": []}\n";
    let cells = b"text,label\na,\"y, x\"\nb,\n";
    for file in [("a.jsonl", &jsonl[..]), ("a.csv", &cells[..])] {
        let loaded = Fixture::new(Task::MultiLabel, &[file]).load().unwrap();
        assert_eq!(loaded.labels.names(), ["x", "y"]);
        assert_eq!(loaded.train.example(0).target, Target::Labels(&[0, 1]));
        assert_eq!(loaded.train.example(1).target, Target::Labels(&[]));
    }
}

#[test]
fn regression_reads_finite_numbers() {
    let fixture = Fixture::new(Task::Regression, &[("a.csv", b"text,label\na,-1.5\nb,2\n")]);
    let loaded = fixture.load().unwrap();
    assert_eq!(loaded.train.targets(), &Targets::Scores(vec![-1.5, 2.0]));
    assert!(loaded.labels.is_empty());
    for bad in ["nan", "inf", "much", "1e99"] {
        let content = format!("text,label\na,{bad}\n");
        let fixture = Fixture::new(Task::Regression, &[("a.csv", content.as_bytes())]);
        assert_eq!(fixture.refusal(), format!("a.csv:2: label `{bad}` is not a finite number, which regression needs"));
    }
}

#[test]
fn the_first_token_of_a_word_carries_its_tag() {
    let conll = b"-DOCSTART- O\n\nab\tNN\tB-X\nc\tVB\tO\n\n\nd\tNN\tI-X\n";
    let jsonl =
        b"{\"tokens\": [\"ab\", \"c\"], \"tags\": [\"B-X\", \"O\"]}\n{\"tokens\": [\"d\"], \"tags\": [\"I-X\"]}\n";
    for file in [("a.conll", &conll[..]), ("a.jsonl", &jsonl[..])] {
        let loaded = Fixture::new(Task::TokenClassification, &[file]).load().unwrap();
        assert_eq!(loaded.labels.names(), ["B-X", "I-X", "O"]);
        assert_eq!(loaded.train.example(0).target, Target::Tags(&[NO_TAG, 0, NO_TAG, 2, NO_TAG]));
        assert_eq!(loaded.train.example(1).target, Target::Tags(&[NO_TAG, 1, NO_TAG]));
        assert_eq!(loaded.train.targets().label_counts(3), [1, 1, 1]);
    }
}

#[test]
fn wrong_words_and_tags_are_located() {
    let refusal = |name, content: &[u8]| Fixture::new(Task::TokenClassification, &[(name, content)]).refusal();
    assert_eq!(
        refusal("a.conll", b"a O\nb\n"),
        "a.conll:2: the row has 1 column, but column 1 (counted from 0) is needed; blanks or tabs separate a word from its tag"
    );
    assert_eq!(refusal("a.jsonl", b"{\"tokens\": [\"a\"], \"tags\": []}"), "a.jsonl:1: 1 words but 0 tags");
    assert!(
        refusal("a.csv", b"tokens,tags\na,O\n")
            .contains("token classification reads words and tags from conll or jsonl")
    );
}

/// Writes rows of (text, label) in each text format; all must read back the same.
fn written(rows: &[(String, String)]) -> Vec<(&'static str, Vec<u8>)> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.write_record(["text", "label"]).unwrap();
    let mut jsonl = Vec::new();
    for (text, label) in rows {
        csv.write_record([text, label]).unwrap();
        jsonl.extend(serde_json::json!({"text": text, "label": label}).to_string().bytes());
        jsonl.push(b'\n');
    }
    vec![("a.csv", csv.into_inner().unwrap()), ("a.jsonl", jsonl)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_survives_csv_and_json_lines(
        rows in prop::collection::vec(("[a-z\"',\t\r\n é😀]{0,12}", "[a-z]{1,3}"), 1..6),
    ) {
        for (name, content) in written(&rows) {
            let loaded = Fixture::new(Task::Classification, &[(name, &content)]).load().unwrap();
            for (index, (text, label)) in rows.iter().enumerate() {
                let expected = Bytes.text(text, None).unwrap();
                let example = loaded.train.example(index);
                prop_assert_eq!(example.tokens, &expected.ids[..], "in {}", name);
                let id = loaded.labels.id(label).unwrap();
                prop_assert_eq!(example.target, Target::Class(id));
            }
        }
    }

    #[test]
    fn no_file_makes_a_reader_panic(
        content in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(b"text,label\t\n\r\"{}:0 ".to_vec())], 0..120,
        ),
        task in prop::sample::select(vec![
            Task::Classification, Task::MultiLabel, Task::Regression, Task::TokenClassification,
        ]),
        encoding in prop::sample::select(vec!["utf-8", "utf-8-lossy", "utf-16be", "gb18030"]),
    ) {
        for name in ["a.csv", "a.tsv", "a.jsonl", "a_text.txt", "a.conll"] {
            let files: [(&str, &[u8]); 2] = [(name, &content), ("a_labels.txt", &content)];
            let fixture = Fixture::new(task, &files).with(|table| table.encoding = encoding.into());
            let _ = fixture.load();
        }
    }
}
