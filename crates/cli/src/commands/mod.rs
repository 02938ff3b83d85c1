//! One file per subcommand.

pub mod bench_serve;
pub mod eval;
pub mod inspect;
pub mod package;
pub mod predict;
pub mod profile;
pub mod serve;
pub mod train;

use std::io::Write;

use anyhow::Context;
use model::files::ModelDir;
use model::{InferenceDtype, LoadMode, Model};
use tensor::CpuKernels;

/// Opens a model for evaluation or prediction in a type, on a team of `threads`. Its directory, which may be a temporary one,
/// lives as long as what is returned.
fn open_model(
    spec: &str,
    dtype: InferenceDtype,
    threads: Option<usize>,
) -> anyhow::Result<(ModelDir, Model, CpuKernels)> {
    let dir = ModelDir::open(spec)?;
    let kernels = CpuKernels::new(threads.unwrap_or_else(tensor::physical_cores));
    let (model, _) = Model::load(&dir, &LoadMode::Inference(dtype), &kernels)?;
    Ok((dir, model, kernels))
}

/// Writes the one JSON object of a `--json` command to standard output.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out).context("cannot write to standard output")
}

/// Tells that texts were cut, for the answer then speaks of less than was asked.
fn note_truncated(truncated: usize, texts: usize, max_tokens: usize) {
    if truncated > 0 {
        let were = if truncated == 1 { "was" } else { "were" };
        eprintln!("note: {truncated} of {texts} texts {were} cut to {max_tokens} tokens");
    }
}

/// Threads of a command, for `clap`.
#[derive(clap::Args)]
pub struct Threads {
    /// Threads to work with [default: the physical cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl Threads {
    fn count(&self) -> Option<usize> {
        self.threads.map(usize::from)
    }
}
