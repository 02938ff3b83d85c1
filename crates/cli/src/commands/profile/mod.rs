//! `trainyard profile`: one file per subcommand.

mod diff;
mod export;
mod import;
mod ls;
mod report;
mod slices;
mod table;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use profile::report::units::{percent, time};
use trace::Profile;

/// Import, understand and convert profiles.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Turn traces of other profilers into a profile: Kineto/Chrome JSON, Nsight Systems sqlite, xplane.pb
    Import(import::Args),
    /// Say where the time went: every analysis, and findings in plain words
    Report(report::Args),
    /// List profiles
    Ls(ls::Args),
    /// Compare two profiles: what was added, removed, slower or faster
    Diff(diff::Args),
    /// Write a profile for another tool
    Export(export::Args),
    /// Print what a viewer draws of one track between two times
    Slices(slices::Args),
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Import(args) => import::run(args),
        Command::Report(args) => report::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Export(args) => export::run(args),
        Command::Slices(args) => slices::run(args),
    }
}

fn open(path: &Path) -> anyhow::Result<Profile> {
    Ok(Profile::open(path)?)
}

/// Context for a failed `write!`.
const STDOUT: &str = "cannot write to standard output";

/// `12.3 ms  45.6 %`, for the cells of a table.
fn time_and_share(ns: i64, share: f64) -> String {
    format!("{} {:>5} %", time(ns as f64), percent(share))
}
