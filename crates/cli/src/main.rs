//! The `trainyard` binary: argument parsing and printing only.

mod commands;
mod exit;
mod progress;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Train and use transformer models on CPUs.
///
/// Exit codes: 0 done, 1 failed, 2 the input is wrong, 130 interrupted.
#[derive(Parser)]
#[command(name = "trainyard", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a training job: fine-tune a model as a job file says.
    Train(commands::train::Args),
    /// Measure a model on labelled data.
    Eval(commands::eval::Args),
    /// Label texts, or embed them with a bare encoder.
    Predict(commands::predict::Args),
    /// Answer texts over HTTP: SageMaker, Hugging Face, text-embeddings-inference, OpenAI and KServe v2.
    Serve(Box<commands::serve::Args>),
    /// Measure a server from the outside: open-loop load and latency percentiles.
    BenchServe(Box<commands::bench_serve::Args>),
    /// Import, understand, compare and convert profiles.
    Profile(Box<commands::profile::Args>),
    /// Pack a model into a model.tar.gz.
    Package(commands::package::Args),
    /// Describe a model and list the problems found in it.
    Inspect(commands::inspect::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Train(args) => commands::train::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Predict(args) => commands::predict::run(args),
        Command::Serve(args) => commands::serve::run(*args),
        Command::BenchServe(args) => commands::bench_serve::run(*args),
        Command::Profile(args) => commands::profile::run(*args),
        Command::Package(args) => commands::package::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
    };
    exit::code_of(result)
}
