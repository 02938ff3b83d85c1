//! `trainyard profile export`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use profile::export;
use profile::report::units::{bytes, count};

use super::{STDOUT, open};
use crate::commands::print_json;
use crate::exit::Refused;

#[derive(clap::Args)]
pub struct Args {
    /// Profile directory
    profile: PathBuf,
    /// What to write
    #[arg(long, value_name = "FORMAT")]
    format: Format,
    /// File to write (perfetto; chrome with one rank; packed when its name ends in .gz or .zst), or folder (parquet, csv; chrome with
    /// several ranks)
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// Replace what is there
    #[arg(long)]
    overwrite: bool,
    /// Print what was written as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Perfetto's protobuf, all ranks on one clock: ui.perfetto.dev, trace processor
    Perfetto,
    /// Chrome JSON as Kineto writes it: HTA, chrome://tracing
    Chrome,
    /// One Parquet file for each table
    Parquet,
    /// One CSV file for each table
    Csv,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profile = open(&args.profile)?;
    let format = match args.format {
        Format::Perfetto => export::Format::Perfetto,
        Format::Chrome => export::Format::Chrome,
        Format::Parquet => export::Format::Parquet,
        Format::Csv => export::Format::Csv,
    };
    refuse_inside(profile.path(), &args.out)?;
    let summary = export::export(&profile, format, &args.out, args.overwrite)?;
    if args.json {
        print_json(&summary)?;
    } else {
        let mut out = std::io::stdout().lock();
        for file in &summary.files {
            writeln!(out, "{} ({})", file.path.display(), bytes(file.bytes as f64)).context(STDOUT)?;
        }
        writeln!(out, "{} events", count(summary.events)).context(STDOUT)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A profile is not written over, nor made to hold what is no part of it.
fn refuse_inside(profile: &Path, out: &Path) -> anyhow::Result<()> {
    let whole = |path: &Path| path.canonicalize().with_context(|| format!("cannot resolve {}", path.display()));
    let profile = whole(profile)?;
    // What is not there yet will be in the nearest folder that is.
    let there = out.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    if whole(there)?.starts_with(&profile) {
        let message =
            format!("cannot export to {}: that is in the profile itself; name a place outside it", out.display());
        return Err(Refused(message).into());
    }
    Ok(())
}
