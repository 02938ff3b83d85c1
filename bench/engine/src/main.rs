//! Our side of the benches: one process per bench that works when the driver says `run` (see `bench/README.md`).

mod adamw;
mod block;
mod columns;
mod dashboard;
mod finetune;
mod infer;
mod protocol;
mod timed;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tensor::{CpuKernels, DType};

use crate::timed::TimedKernels;

/// Our side of the benches.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
    /// Threads of the kernel team
    #[arg(long, global = true, default_value_t = 2)]
    threads: usize,
    /// Steps before the first run
    #[arg(long, global = true, default_value_t = 2)]
    warmup_steps: usize,
    /// Steps of one run
    #[arg(long, global = true, default_value_t = 4)]
    steps_per_run: usize,
    /// At the end, print to standard error where the time went, kernel by kernel
    #[arg(long, global = true)]
    breakdown: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// Optimizer steps of a RoBERTa-base-shaped classifier
    Finetune(finetune::Args),
    /// Forward and backward of one transformer block
    Block(block::Args),
    /// Inference of a classifier of a known model's shape
    Infer(infer::Args),
    /// AdamW updates
    Adamw(adamw::Args),
    /// One pass of serde_json over a trace
    Columns(columns::Args),
    /// Every number of the dashboard from a stored profile
    Dashboard(dashboard::Args),
}

/// Type of activations and working weights.
#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    F32,
    Bf16,
}

impl Precision {
    fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let kernels = TimedKernels::new(CpuKernels::new(cli.threads));
    let result = match &cli.bench {
        Bench::Finetune(args) => finetune::Finetune::new(args, &kernels).and_then(|bench| serve(&cli, bench, &kernels)),
        Bench::Block(args) => block::Block::new(args, &kernels).and_then(|bench| serve(&cli, bench, &kernels)),
        Bench::Infer(args) => infer::Infer::new(args, &kernels).and_then(|bench| serve(&cli, bench, &kernels)),
        Bench::Adamw(args) => serve(&cli, adamw::Adamw::new(args, &kernels), &kernels),
        Bench::Columns(args) => columns::run(args),
        Bench::Dashboard(args) => dashboard::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", serde_json::json!({"error": format!("{error:#}")}));
            ExitCode::FAILURE
        }
    }
}

fn serve(cli: &Cli, mut bench: impl protocol::Steps, kernels: &TimedKernels) -> anyhow::Result<()> {
    for _ in 0..cli.warmup_steps {
        bench.step()?;
    }
    kernels.reset();
    protocol::serve(cli.steps_per_run, bench)?;
    if cli.breakdown {
        eprint!("{}", kernels.table());
    }
    Ok(())
}
