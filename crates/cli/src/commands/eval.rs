//! `trainyard eval`

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use model::InferenceDtype;

use train::job::{Column, DataTable, Format, Keep};

use super::{Threads, note_truncated, open_model, print_json};
use crate::exit::Refused;

#[derive(clap::Args)]
pub struct Args {
    /// Model directory, run directory, model.tar.gz or hf:org/name
    model: String,
    /// Labelled data: TSV, CSV, JSONL or CoNLL file, a glob, or a texts.txt with its labels.txt beside it
    data: String,
    /// Column of the text: a name, or an index from 0 [default: text]
    #[arg(long, value_name = "COLUMN")]
    text: Option<String>,
    /// Column of the second text of a pair
    #[arg(long, value_name = "COLUMN")]
    text_pair: Option<String>,
    /// Column of the label [default: label]
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// The file has no row of column names
    #[arg(long)]
    no_header: bool,
    /// File format [default: by the file's name]
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// Character encoding: utf-8 (strict), utf-8-lossy, or any WHATWG label
    #[arg(long, default_value = "utf-8")]
    encoding: String,
    /// Splits the labels inside one cell, for multi-label models
    #[arg(long, value_name = "TEXT", default_value = ",")]
    label_separator: String,
    /// Leave out rows whose text is not pure ASCII
    #[arg(long)]
    only_ascii: bool,
    /// Leave out rows whose text occurred before
    #[arg(long)]
    dedup: bool,
    /// Longest example in tokens [default: what the model can take]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Type of the weights: f32, bf16 (half the memory) or int8 (a quarter, and rounded activations)
    #[arg(long, value_name = "TYPE", default_value_t)]
    dtype: InferenceDtype,
    #[command(flatten)]
    threads: Threads,
    /// Print the metrics as one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let table = table_of(&args)?;
    let (_dir, model, kernels) = open_model(&args.model, args.dtype, args.threads.count())?;
    let (report, counts) = train::evaluate_source(&model, &args.data, &table, args.dtype.activations(), &kernels)?;
    let longest = args.max_tokens.unwrap_or(model.encoder.config().encoder.max_tokens());
    note_truncated(counts.truncated as usize, counts.examples as usize, longest);
    if args.json {
        print_json(&report)?;
    } else {
        writeln!(std::io::stdout().lock(), "{report}").context("cannot write to standard output")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table_of(args: &Args) -> anyhow::Result<DataTable> {
    let column = |name: &String| match name.parse() {
        Ok(index) => Column::Index(index),
        Err(_) => Column::Name(name.clone()),
    };
    let format = match &args.format {
        None => Format::default(),
        Some(name) => serde_json::from_value(serde_json::Value::String(name.clone()))
            .map_err(|error| Refused(format!("--format: {error}")))?,
    };
    Ok(DataTable {
        text: args.text.as_ref().map(column),
        text_pair: args.text_pair.as_ref().map(column),
        label: args.label.as_ref().map(column),
        header: !args.no_header,
        format,
        encoding: args.encoding.clone(),
        max_tokens: args.max_tokens,
        label_separator: args.label_separator.clone(),
        keep: if args.only_ascii { Keep::Ascii } else { Keep::All },
        dedup: args.dedup,
        ..DataTable::default()
    })
}
