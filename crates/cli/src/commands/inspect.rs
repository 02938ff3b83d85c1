//! `trainyard inspect`

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use model::files::{Checkpoint, ModelDir};
use model::tokenizer::Tokenizer;
use model::{Encoder, Head, ModelConfig, Problem, WeightsComparison};
use serde::Serialize;

use super::print_json;

#[derive(clap::Args)]
pub struct Args {
    /// Model directory, run directory, model.tar.gz or hf:org/name
    model: String,
    /// List every tensor of the weights files
    #[arg(long)]
    tensors: bool,
    /// Print the description as one JSON object
    #[arg(long)]
    json: bool,
}

/// What there is to say about a model; what cannot be read is among the problems.
#[derive(Serialize, Default)]
struct Description {
    architecture: Option<String>,
    head: Option<String>,
    parameters: Option<usize>,
    layers: Option<usize>,
    hidden: Option<usize>,
    max_tokens: Option<usize>,
    labels: Vec<String>,
    tokenizer: Option<TokenizerDescription>,
    tensors: Vec<TensorDescription>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct TokenizerDescription {
    vocabulary: usize,
}

#[derive(Serialize)]
struct TensorDescription {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let dir = ModelDir::open(&args.model)?;
    let description = describe(&dir);
    if args.json {
        print_json(&description)?;
    } else {
        print(&mut std::io::stdout().lock(), &description, args.tensors).context("cannot write to standard output")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(dir: &ModelDir) -> Description {
    let mut description = Description::default();
    let encoder = match ModelConfig::parse(dir.config_text()) {
        Ok(config) => Some(Encoder::new(config)),
        Err(error) => {
            description.problems.push(error.to_string());
            None
        }
    };
    if let Some(encoder) = &encoder {
        describe_config(encoder, &mut description);
    }
    match Checkpoint::open(dir.path()) {
        Ok(checkpoint) => describe_weights(encoder.as_ref(), &checkpoint, &mut description),
        Err(error) => description.problems.push(error.to_string()),
    }
    match Tokenizer::open(dir.path()) {
        Ok(tokenizer) => {
            let vocabulary = tokenizer.vocab_size();
            let rows = encoder.as_ref().map_or(vocabulary, |e| e.config().encoder.vocab_size);
            if vocabulary > rows {
                let text = format!("the tokenizer has {vocabulary} tokens but the model only {rows} embeddings");
                description.problems.push(text);
            }
            description.tokenizer = Some(TokenizerDescription { vocabulary });
        }
        Err(error) => description.problems.push(error.to_string()),
    }
    description
}

fn describe_config(encoder: &Encoder, description: &mut Description) {
    let config = encoder.config();
    description.architecture = Some(config.encoder.family.to_string());
    let head = match config.head {
        Head::Sequence(Problem::SingleLabel) => "sequence classification, one label".into(),
        Head::Sequence(Problem::MultiLabel) => "sequence classification, any number of labels".into(),
        Head::Sequence(Problem::Regression) => "regression".into(),
        Head::Token => "token classification".into(),
        Head::Embedding => "none: makes embeddings".into(),
    };
    description.head = Some(head);
    description.parameters = Some(encoder.descriptors().iter().map(model::ParamDescr::len).sum());
    description.layers = Some(config.encoder.layers);
    description.hidden = Some(config.encoder.hidden);
    description.max_tokens = Some(config.encoder.max_tokens());
    description.labels = config.labels.clone();
}

fn describe_weights(encoder: Option<&Encoder>, checkpoint: &Checkpoint, description: &mut Description) {
    for name in checkpoint.names() {
        if let Some(info) = checkpoint.info(name) {
            let (dtype, shape) = (info.dtype.to_string(), info.shape.clone());
            description.tensors.push(TensorDescription { name: name.into(), dtype, shape });
        }
    }
    let Some(encoder) = encoder else { return };
    let WeightsComparison { missing, mismatched, unused } = model::compare_weights(encoder, checkpoint);
    let problems = [("the weights lack", missing), ("of another shape than config.json asks for:", mismatched)];
    for (what, names) in problems {
        description.problems.extend(names.into_iter().map(|name| format!("{what} {name}")));
    }
    description.problems.extend(unused.into_iter().map(|name| format!("in the weights but not used: {name}")));
}

fn print(out: &mut impl Write, description: &Description, tensors: bool) -> std::io::Result<()> {
    let lines = [
        ("architecture", description.architecture.clone()),
        ("head", description.head.clone()),
        ("parameters", description.parameters.map(|n| format!("{n} ({:.1} M)", n as f64 / 1e6))),
        ("layers", description.layers.zip(description.hidden).map(|(n, h)| format!("{n}, hidden size {h}"))),
        ("max tokens", description.max_tokens.map(|n| n.to_string())),
        ("labels", (!description.labels.is_empty()).then(|| description.labels.join(", "))),
        ("tokenizer", description.tokenizer.as_ref().map(|t| format!("{} tokens", t.vocabulary))),
        ("tensors", Some(description.tensors.len().to_string())),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            writeln!(out, "{name:<13} {value}")?;
        }
    }
    if tensors {
        for tensor in &description.tensors {
            writeln!(out, "  {:<72} {} {:?}", tensor.name, tensor.dtype, tensor.shape)?;
        }
    }
    if description.problems.is_empty() {
        return writeln!(out, "no problems found");
    }
    description.problems.iter().try_for_each(|problem| writeln!(out, "problem: {problem}"))
}
