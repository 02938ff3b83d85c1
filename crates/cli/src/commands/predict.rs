//! `trainyard predict`

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use model::InferenceDtype;
use serde::Serialize;
use train::{Prediction, predict};

use super::{Threads, note_truncated, open_model, print_json};
use crate::exit::Refused;

/// More than anyone pipes in; a limit so that a wrong pipe ends in a message.
const MAX_INPUT_BYTES: u64 = 1 << 30;

#[derive(clap::Args)]
pub struct Args {
    /// Model directory, run directory, model.tar.gz or hf:org/name
    model: String,
    /// The texts; without any, one text is read from every line of standard input
    texts: Vec<String>,
    /// Type of the weights: f32, bf16 (half the memory) or int8 (a quarter, and rounded activations)
    #[arg(long, value_name = "TYPE", default_value_t)]
    dtype: InferenceDtype,
    #[command(flatten)]
    threads: Threads,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Results<'a> {
    results: &'a [Prediction],
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let texts = if args.texts.is_empty() { read_lines()? } else { args.texts };
    let (_dir, model, kernels) = open_model(&args.model, args.dtype, args.threads.count())?;
    let (predictions, truncated) = predict(&model, &texts, args.dtype.activations(), &kernels)?;
    note_truncated(truncated, texts.len(), model.encoder.config().encoder.max_tokens());
    if args.json {
        print_json(&Results { results: &predictions })?;
    } else {
        let mut out = std::io::stdout().lock();
        for prediction in &predictions {
            print(&mut out, prediction).context("cannot write to standard output")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read_lines() -> anyhow::Result<Vec<String>> {
    if std::io::stdin().is_terminal() {
        eprintln!("one text a line; Ctrl-D ends them");
    }
    let mut bytes = Vec::new();
    std::io::stdin().take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes).context("cannot read standard input")?;
    if bytes.len() as u64 > MAX_INPUT_BYTES {
        return Err(Refused(format!("standard input: more than {MAX_INPUT_BYTES} bytes; split it")).into());
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        Refused(format!("standard input is not UTF-8: the byte at offset {byte} starts no character"))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut lines: Vec<String> =
        text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line).to_string()).collect();
    if lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    Ok(lines)
}

fn print(out: &mut impl Write, prediction: &Prediction) -> std::io::Result<()> {
    match prediction {
        Prediction::Labels { text, labels } => {
            let scores: Vec<String> = labels.iter().map(|l| format!("{} {:.3}", l.label, l.score)).collect();
            writeln!(out, "{}  |  {text}", scores.join("  "))
        }
        Prediction::Tokens { text, tokens } => {
            writeln!(out, "{text}")?;
            tokens.iter().try_for_each(|t| writeln!(out, "  {:<24} {} {:.3}", &text[t.start..t.end], t.label, t.score))
        }
        Prediction::Embedding { embedding, .. } => {
            let numbers: Vec<String> = embedding.iter().map(|x| x.to_string()).collect();
            writeln!(out, "{}", numbers.join(" "))
        }
    }
}
