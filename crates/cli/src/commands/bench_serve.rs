//! `trainyard bench-serve`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use serve::load::{self, Arrival, LoadError, Pace, Plan, Protocol, Target, Trust};

use super::print_json;
use crate::exit::Refused;

/// Requests start at scheduled times, whether or not earlier ones were answered (open loop), and latency counts from the
/// scheduled time: a server that stalls is charged for every request that was due meanwhile, so nothing is hidden by
/// coordinated omission. `--concurrency` keeps a number of requests in flight instead, to find the rate at which a server
/// saturates. Ctrl-C ends early with the results so far. Exit codes: 0 done, 1 no request succeeded, 2 wrong arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The server, as http://127.0.0.1:8080 [path: /invocations]; the path decides the form of the body
    url: String,
    /// Texts to send, one a line in UTF-8, taken in order and again from the first
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Requests per second
    #[arg(long, default_value_t = 50.0, conflicts_with = "concurrency")]
    rate: f64,
    /// Keep so many requests in flight instead (closed loop); latency then counts from each request's start
    #[arg(long, value_name = "N", conflicts_with = "arrival")]
    concurrency: Option<usize>,
    /// How start times are spaced: callers who know nothing of one another are poisson
    #[arg(long, value_enum, default_value_t = Spacing::Poisson)]
    arrival: Spacing,
    /// Seed of the start times
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seconds during which requests are started and counted
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds of requests before that, which are not counted
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warmup: f64,
    /// Texts of one request
    #[arg(long, value_name = "N", default_value_t = 1)]
    inputs_per_request: usize,
    /// Form of the body, where the path of the URL does not tell
    #[arg(long, value_enum)]
    protocol: Option<Form>,
    /// Name of the model in OpenAI bodies
    #[arg(long, value_name = "NAME", default_value = "model")]
    model: String,
    /// Key to send as `Authorization: Bearer`
    #[arg(long, value_name = "KEY", env = "TRAINYARD_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds from the scheduled start of a request after which it counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    timeout: f64,
    /// Most connections at once; they are kept alive
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: usize,
    /// Accept any certificate over https, as for a self-signed one
    #[arg(long, conflicts_with = "cacert")]
    insecure: bool,
    /// PEM file of the certificates to trust over https [default: the system's]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Spacing {
    Constant,
    Poisson,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Form {
    /// {"inputs": …}
    Inputs,
    /// {"input": …, "model": …}
    Openai,
    /// KServe v2 with BYTES
    Kserve,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let json = args.json;
    let plan = plan(args)?;
    // One thread: the generator takes as little as it can from a server on the same machine.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let report = runtime.block_on(load::run_until(plan, interrupted())).map_err(refused)?;
    if json {
        print_json(&report)?;
    } else {
        write!(std::io::stdout().lock(), "{report}").context("cannot write to standard output")?;
    }
    Ok(if report.succeeded > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ready at Ctrl-C; never where it cannot be listened for.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn plan(args: Args) -> anyhow::Result<Plan> {
    let protocol = args.protocol.map(|form| match form {
        Form::Inputs => Protocol::Inputs,
        Form::Openai => Protocol::OpenAi,
        Form::Kserve => Protocol::Kserve,
    });
    let trust = match args.cacert {
        _ if args.insecure => Trust::Any,
        Some(path) => Trust::File(path),
        None => Trust::System,
    };
    let mut target = Target::parse(&args.url, protocol, &args.model, trust).map_err(refused)?;
    if let Some(key) = &args.api_key {
        target = target.with_api_key(key).map_err(refused)?;
    }
    let arrival = match args.arrival {
        Spacing::Constant => Arrival::Constant,
        Spacing::Poisson => Arrival::Poisson,
    };
    let pace = match args.concurrency {
        Some(concurrency) => Pace::Closed { concurrency },
        None => Pace::Open { rate: args.rate, arrival },
    };
    Ok(Plan {
        target,
        texts: load::read_texts(&args.data).map_err(refused)?,
        pace,
        duration: seconds("--seconds", args.seconds)?,
        warmup: seconds("--warmup", args.warmup)?,
        inputs_per_request: args.inputs_per_request,
        timeout: seconds("--timeout", args.timeout)?,
        max_connections: args.max_connections,
        seed: args.seed,
    })
}

/// All that a plan can be refused for is an argument, but for a system that has no thread left.
fn refused(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Thread(_) => error.into(),
        _ => Refused(error.to_string()).into(),
    }
}

fn seconds(name: &str, value: f64) -> Result<Duration, Refused> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| Refused(format!("{name} is {value}; it must be a number of seconds")))
}
