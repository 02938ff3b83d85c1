//! `trainyard predict` and `trainyard eval`.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{COLOURS, Dice, Ran, Yard, sentiments, tsv};

const UP: &str = "this was a lovely morning";
const DOWN: &str = "it was a poor train";

/// The texts on standard input.
fn piped(yard: &Yard, args: &[&str], input: &[u8]) -> Ran {
    let mut command = yard.command(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Ran::of(child.wait_with_output().unwrap())
}

fn results(ran: Ran) -> Vec<Value> {
    ran.object()["results"].as_array().unwrap().clone()
}

#[test]
fn a_text_gets_its_labels_the_surest_first() {
    let yard = Yard::trained();
    let ran = yard.run(&["predict", "runs/job", UP]).ok();
    assert!(ran.stdout.starts_with("up 0.9") && ran.stdout.trim_end().ends_with(UP), "{}", ran.stdout);
    assert_eq!(ran.stderr, "");

    let object = yard.run(&["predict", "runs/job", UP, DOWN, "--json"]).object();
    assert_eq!(object.as_object().unwrap().len(), 1);
    let results = object["results"].as_array().unwrap();
    for (result, (text, first, second)) in results.iter().zip([(UP, "up", "down"), (DOWN, "down", "up")]) {
        assert_eq!(result["text"], text);
        let labels = result["labels"].as_array().unwrap();
        assert_eq!((&labels[0]["label"], &labels[1]["label"]), (&json!(first), &json!(second)));
        let score = |i: usize| labels[i]["score"].as_f64().unwrap();
        assert!(score(0) > 0.9 && (score(0) + score(1) - 1.0).abs() < 1e-6, "{result}");
    }
    assert_eq!(results.len(), 2);
}

#[test]
fn lines_of_standard_input_are_texts() {
    let yard = Yard::trained();
    let from_arguments = yard.run(&["predict", "runs/job", UP, "", DOWN, "--json"]).object();
    for input in [format!("{UP}\n\n{DOWN}\n"), format!("{UP}\n\n{DOWN}"), format!("\u{feff}{UP}\r\n\r\n{DOWN}\r\n")] {
        let from_lines = piped(&yard, &["predict", "runs/job", "--json"], input.as_bytes()).object();
        assert_eq!(from_lines, from_arguments, "{input:?}");
    }
    assert_eq!(results(piped(&yard, &["predict", "runs/job", "--json"], b"")).len(), 0);
    piped(&yard, &["predict", "runs/job"], b"good\nna\xefve\n").refused(&["standard input is not UTF-8", "offset 7"]);
}

#[test]
fn texts_of_no_and_of_very_many_tokens_are_answered() {
    let yard = Yard::trained();
    let long = "good ".repeat(4000);
    let ran = yard.run(&["predict", "runs/job", "", " ", &long, "日本 🚂 \u{200d}", "--json"]).ok();
    assert!(ran.stderr.contains("note: 1 of 4 texts was cut to 64 tokens"), "{}", ran.stderr);
    let results = results(ran);
    assert_eq!(results.len(), 4);
    assert_eq!(results[2]["labels"][0]["label"], "up");
    assert_eq!(results[0]["labels"], results[1]["labels"]);
}

#[test]
fn a_text_is_answered_the_same_alone_and_among_others() {
    let yard = Yard::trained();
    let mut dice = Dice(7);
    let mut texts: Vec<String> = sentiments(60, 8).into_iter().map(|(text, _)| text).collect();
    texts.extend((0..20).map(|i| dice.sentence(&vec!["very"; i])));
    texts.extend([String::new(), "good ".repeat(100)]);
    let together = results(piped(&yard, &["predict", "runs/job", "--json"], texts.join("\n").as_bytes()));
    assert_eq!(together.len(), texts.len());
    for index in [0, 1, 30, 61, 70, 79, 80, 81] {
        let alone = results(yard.run(&["predict", "runs/job", &texts[index], "--json"]));
        assert_eq!(alone[0], together[index]);
        let one_thread = results(yard.run(&["predict", "runs/job", &texts[index], "--json", "--threads", "1"]));
        assert_eq!(one_thread[0], together[index], "on one thread");
    }
}

#[test]
fn a_model_is_a_run_a_directory_or_a_tarball() {
    let yard = Yard::trained();
    yard.run(&["package", "runs/job", "-o", "model.tar.gz"]).ok();
    let by_run = yard.run(&["predict", "runs/job", UP, "--json"]).object();
    let eval_by_run = yard.run(&["eval", "runs/job", "validation.tsv", "--json"]).object();
    for model in ["runs/job/model", "model.tar.gz"] {
        assert_eq!(yard.run(&["predict", model, UP, "--json"]).object(), by_run);
        assert_eq!(yard.run(&["eval", model, "validation.tsv", "--json"]).object(), eval_by_run);
    }
}

#[test]
fn words_get_their_labels_where_they_stand() {
    let yard = Yard::new();
    let mut dice = Dice(5);
    let mut lines = String::new();
    for _ in 0..96 {
        let colour = dice.pick(&COLOURS);
        for word in dice.sentence(&[colour]).split(' ') {
            lines += &format!("{word} {}\n", if COLOURS.contains(&word) { "B-COLOUR" } else { "O" });
        }
        lines += "\n";
    }
    yard.write("train.conll", lines);
    yard.train(&["task=token-classification", "data.train=train.conll", "data.validation=[]"]).ok();
    let text = "the green train";
    let object = yard.run(&["predict", "runs/job", text, "", "--json"]).object();
    let tokens = object["results"][0]["tokens"].as_array().unwrap();
    let labels: Vec<(&str, &str)> = tokens
        .iter()
        .map(|token| {
            let (start, end) = (token["start"].as_u64().unwrap(), token["end"].as_u64().unwrap());
            (&text[start as usize..end as usize], token["label"].as_str().unwrap())
        })
        .collect();
    assert_eq!(labels, [("the", "O"), ("green", "B-COLOUR"), ("train", "O")]);
    assert_eq!(object["results"][1]["tokens"], json!([]));
    let ran = yard.run(&["predict", "runs/job", text]).ok();
    assert_eq!(ran.stdout.lines().count(), 4, "{}", ran.stdout);
    assert!(yard.run(&["eval", "runs/job", "train.conll", "--json"]).object()["entities"]["f1"].as_f64() > Some(0.9));
}

#[test]
fn a_bare_encoder_answers_with_an_embedding_of_length_one() {
    let yard = Yard::new();
    let object = yard.run(&["predict", "base", UP, "--json"]).object();
    let embedding: Vec<f64> =
        object["results"][0]["embedding"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!(embedding.len(), 32);
    assert!((embedding.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let yard = Yard::trained();
    let ran = yard.shell("yes good | head -5000 | trainyard predict runs/job | head -1").ok();
    assert_eq!(ran.stderr, "");
}

#[test]
fn eval_measures_what_it_promises() {
    let yard = Yard::trained();
    let object = yard.run(&["eval", "runs/job", "validation.tsv", "--json"]).object();
    let keys: BTreeSet<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    for key in ["examples", "loss", "accuracy", "macro_f1", "macro_recall", "per_label", "confusion"] {
        assert!(keys.contains(key), "{key} is not in {keys:?}");
    }
    assert_eq!(object["examples"], 48);
    assert_eq!(object["per_label"][1]["label"], "up");
    let confusion: Vec<Vec<u64>> = serde_json::from_value(object["confusion"].clone()).unwrap();
    assert_eq!(confusion.iter().flatten().sum::<u64>(), 48);
    let right = (confusion[0][0] + confusion[1][1]) as f64 / 48.0;
    assert_eq!(object["accuracy"].as_f64(), Some(right));

    let ran = yard.run(&["eval", "runs/job", "validation.tsv"]).ok();
    assert!(ran.stdout.contains("accuracy") && ran.stdout.contains("actual \\ predicted"), "{}", ran.stdout);
}

#[test]
fn eval_reads_every_format_alike() {
    let yard = Yard::trained();
    let rows = sentiments(30, 9);
    let column =
        |of: fn(&(String, String)) -> &String| rows.iter().map(|row| format!("{}\n", of(row))).collect::<String>();
    yard.write("rows.tsv", tsv(&rows));
    yard.write(
        "rows.csv",
        rows.iter().fold("label,text\n".to_string(), |all, (text, label)| all + &format!("{label},\"{text}\"\n")),
    );
    let objects = rows.iter().map(|(text, label)| format!("{}\n", json!({"text": text, "label": label})));
    yard.write("rows.jsonl", objects.collect::<String>());
    yard.write("rows_text.txt", column(|row| &row.0));
    yard.write("rows_labels.txt", column(|row| &row.1));
    yard.write("other.txt", column(|row| &row.1));
    yard.write("ids.txt", rows.iter().map(|(_, label)| if label == "up" { "1\n" } else { "0\n" }).collect::<String>());
    yard.write("bare.tsv", rows.iter().map(|(text, label)| format!("7\t{label}\t{text}\n")).collect::<String>());
    yard.write("parts/1.tsv", tsv(&rows[..10]));
    yard.write("parts/2.tsv", tsv(&rows[10..]));
    yard.write("windows.csv", format!("\u{feff}{}", yard.text("rows.csv").replace('\n', "\r\n")));

    let measure = |args: &[&str]| yard.run(&[&["eval", "runs/job", "--json"], args].concat()).object();
    let expected = measure(&["rows.tsv"]);
    assert_eq!(expected["examples"], 30);
    let sources = ["rows.csv", "rows.jsonl", "rows_text.txt", "rows_text.txt,other.txt", "rows_text.txt,ids.txt"];
    for source in sources.into_iter().chain(["parts/*.tsv", "windows.csv"]) {
        assert_eq!(measure(&[source]), expected, "{source}");
    }
    assert_eq!(measure(&["bare.tsv", "--no-header", "--text", "2", "--label", "1"]), expected);
    let utf_16: Vec<u8> = yard.text("rows.csv").encode_utf16().flat_map(u16::to_le_bytes).collect();
    yard.write("wide.dat", utf_16);
    assert_eq!(measure(&["wide.dat", "--format", "csv", "--encoding", "utf-16le"]), expected);
}

#[test]
fn eval_says_how_many_texts_were_cut() {
    let yard = Yard::trained();
    yard.write("long.tsv", format!("text\tlabel\n{}\tup\ngood\tup\n", "good ".repeat(200)));
    let ran = yard.run(&["eval", "runs/job", "long.tsv"]).ok();
    assert!(ran.stderr.contains("note: 1 of 2 texts was cut to 64 tokens"), "{}", ran.stderr);
}

#[test]
fn each_type_of_arithmetic_measures_nearly_what_f32_measures() {
    let yard = Yard::trained();
    let eval = |dtype: &str| yard.run(&["eval", "runs/job", "validation.tsv", "--dtype", dtype, "--json"]).object();
    let score = |dtype: &str| {
        let results = results(yard.run(&["predict", "runs/job", UP, "--dtype", dtype, "--json"]));
        results[0]["labels"][0]["score"].as_f64().unwrap()
    };
    let exact = eval("f32");
    for dtype in ["bf16", "int8"] {
        let (loss, exact_loss) = (eval(dtype)["loss"].as_f64().unwrap(), exact["loss"].as_f64().unwrap());
        assert!(loss != exact_loss && (loss - exact_loss).abs() < 0.02, "{dtype}: {loss} for {exact_loss}");
        assert!((score(dtype) - score("f32")).abs() < 0.02, "{dtype}");
    }
    let refused = yard.run(&["eval", "runs/job", "validation.tsv", "--dtype", "fp16"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("f32, bf16 and int8"), "{}", refused.stderr);
}
