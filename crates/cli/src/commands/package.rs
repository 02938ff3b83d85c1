//! `trainyard package`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use model::files::{ModelDir, tarball};
use model::{LoadMode, Model};
use tensor::CpuKernels;

#[derive(clap::Args)]
pub struct Args {
    /// Run directory or model directory
    model: String,
    /// The archive to write
    #[arg(short, long, value_name = "FILE", default_value = "model.tar.gz")]
    out: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let dir = ModelDir::open(&args.model)?;
    // What cannot be loaded should not be shipped.
    Model::load(&dir, &LoadMode::AsIs, &CpuKernels::new(1))?;
    tarball::pack(dir.path(), &args.out)?;
    let bytes = std::fs::metadata(&args.out).map_or(0, |metadata| metadata.len());
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} ({:.1} MB)", args.out.display(), bytes as f64 / 1e6)
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
