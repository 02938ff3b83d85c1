//! `trainyard serve`

mod values;

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use model::InferenceDtype;
use serve::engine::EngineOptions;
use serve::http::ApiKeys;
use serve::options::{ModelSpec, MultiModel, Options, PythonOptions, RequestLimits};
use serve::server::{Event, Server, hangups, reload_all, stop_signal};
use tokio::sync::Semaphore;

use super::Threads;
use crate::exit::Refused;
use values::{MOST_BODY_BYTES, accept, seconds, tls_of, up_to, variable, without_empty_variable};

/// The container contract's directory.
const BASE_DIR: &str = "/opt/ml";
/// What asks for the multi-model API in a SageMaker container.
const MULTI_MODEL: &str = "SAGEMAKER_MULTI_MODEL";
/// For threads that are busy with something nobody waits for any more, such as a model that is still loading.
const LAST_WAIT: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
#[command(mut_args(without_empty_variable))]
pub struct Args {
    /// Models to serve: model directory, run directory, model.tar.gz or hf:org/name, each with NAME= before it if it should
    /// have another name. The first one answers routes that name no model. Without any, what a SageMaker container has in
    /// /opt/ml/model, on all addresses
    #[arg(value_name = "[NAME=]MODEL")]
    models: Vec<String>,
    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Port to listen on; 0 for any that is free
    #[arg(long, env = "SAGEMAKER_BIND_TO_PORT", default_value_t = 8080)]
    port: u16,
    /// What /invocations answers when anything is accepted: application/json, application/jsonlines or text/csv; Python
    /// handlers get text/plain and application/x-npy too
    #[arg(long, value_name = "TYPE", value_parser = accept, env = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT")]
    default_accept: Option<String>,

    /// Arithmetic and storage: f32, bf16 or int8
    #[arg(long, default_value_t = InferenceDtype::F32, help_heading = "Engine")]
    dtype: InferenceDtype,
    #[command(flatten, next_help_heading = "Engine")]
    threads: Threads,
    /// Thread teams, each with a batch of its own in flight; several are pinned to cores of their own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Engine")]
    teams: u16,
    /// Tokens of a batch; a batch is what waits when a team is free, up to this
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = up_to::<{ 1 << 24 }>, help_heading = "Engine")]
    max_batch_tokens: usize,
    /// Cut texts that are too long, where a request does not say; else they are refused
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set, help_heading = "Engine")]
    auto_truncate: bool,
    /// Refuse models for another task than text-classification, token-classification or feature-extraction; models with
    /// Python handlers may be for any
    #[arg(long, env = "HF_TASK", help_heading = "Engine")]
    task: Option<String>,

    /// Inputs that may wait for a batch; more get 429
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = up_to::<{ 1 << 24 }>, help_heading = "Limits")]
    max_queue: usize,
    /// Inputs of a request; more get 422. Lowered to --max-queue, which could never hold more
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = up_to::<{ 1 << 20 }>, help_heading = "Limits")]
    max_inputs: usize,
    /// Bytes of a body; more get 413 [default: 6 MiB, or SAGEMAKER_MAX_PAYLOAD_IN_MB]
    #[arg(long, value_name = "BYTES", value_parser = up_to::<MOST_BODY_BYTES>, help_heading = "Limits")]
    max_body_bytes: Option<usize>,
    /// Seconds from a request's arrival to its answer; later it gets 504
    #[arg(long, value_name = "SECONDS", env = "SAGEMAKER_MODEL_SERVER_TIMEOUT", default_value_t = 60.0, value_parser = seconds, help_heading = "Limits")]
    timeout: f64,
    /// Connections at a time; more wait to be accepted
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = up_to::<{ Semaphore::MAX_PERMITS }>, help_heading = "Limits")]
    max_connections: usize,
    /// Seconds a connection has to send a request's head, and may idle
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds, help_heading = "Limits")]
    header_timeout: f64,
    /// Seconds for requests in flight after SIGTERM or Ctrl-C; a second signal ends at once
    #[arg(long, value_name = "SECONDS", default_value_t = 25.0, value_parser = seconds, help_heading = "Limits")]
    drain_timeout: f64,

    /// File with one API key a line; requests then need one as `Authorization: Bearer KEY`
    #[arg(long, value_name = "FILE", env = "TRAINYARD_API_KEY_FILE", help_heading = "Security")]
    api_key_file: Option<PathBuf>,
    /// Encrypt: a certificate and its key in PEM files, or `self-signed`
    #[arg(long, value_name = "CERT,KEY", help_heading = "Security")]
    tls: Option<String>,

    /// Let models be loaded and unloaded over HTTP (POST and DELETE /models)
    #[arg(long, env = MULTI_MODEL, num_args = 0..=1, default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL", help_heading = "Multi-model")]
    multi_model: bool,
    /// Load models from below this directory only
    #[arg(long, value_name = "DIR", default_value = "/opt/ml/models", help_heading = "Multi-model")]
    model_root: PathBuf,
    /// Bytes that all models may take in memory together; loading more over HTTP gets 507. A model takes 1.3 times its weights
    /// in the type of --dtype, one with Python handlers all of its files in each worker; a reload takes one more model while it
    /// lasts [default: what is free on the machine and in its control group]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Multi-model")]
    model_memory: Option<u64>,

    /// The script with a model's own handlers, in its code/ directory
    #[arg(
        long,
        value_name = "FILE",
        env = "SAGEMAKER_PROGRAM",
        default_value = "inference.py",
        help_heading = "Python handlers"
    )]
    program: String,
    /// The interpreter that virtual environments are made from
    #[arg(long, value_name = "FILE", default_value = "python3", help_heading = "Python handlers")]
    python: PathBuf,
    /// Worker processes of a model
    #[arg(long, value_name = "N", env = "SAGEMAKER_MODEL_SERVER_WORKERS", default_value_t = 1, value_parser = up_to::<256>, help_heading = "Python handlers")]
    workers: usize,
    /// Bytes of address space of a worker
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Python handlers")]
    worker_memory: Option<u64>,
    /// Seconds for a worker to import its script and load its model
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds, help_heading = "Python handlers")]
    worker_start_timeout: f64,
    /// Where virtual environments are kept [default: ~/.cache/trainyard/environments]
    #[arg(long, value_name = "DIR", help_heading = "Python handlers")]
    environments: Option<PathBuf>,

    /// Send traces to an OTLP/HTTP collector: http://HOST:4318
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", help_heading = "Observability")]
    otlp_endpoint: Option<String>,
    /// Form of the log on standard error
    #[arg(long, value_name = "FORM", default_value = "text", help_heading = "Observability")]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug (every request), trace, or a tracing filter
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info", help_heading = "Observability")]
    log_level: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// The word that `sagemaker` containers are started with.
const CONTAINER_COMMAND: &str = "serve";

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    start_log(&args)?;
    let options = options_of(args)?;
    warn_if_open(&options);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("http").build();
    let runtime = runtime.context("cannot start threads")?;
    let result = runtime.block_on(async {
        let server = Server::bind(options).await?;
        let app = server.app();
        tokio::spawn(hangups(move || {
            let app = app.clone();
            async move { reload_all(&app).await }
        }));
        server.run(stop_signal, tell).await
    });
    runtime.shutdown_timeout(LAST_WAIT);
    result?;
    Ok(ExitCode::SUCCESS)
}

fn tell(event: Event) {
    match event {
        Event::Listening(url) => tracing::info!(url, "listening; models are loading"),
        Event::Ready(seconds) => tracing::info!(seconds, "ready"),
        Event::Draining => tracing::info!("told to stop: finishing the requests in flight"),
    }
}

fn start_log(args: &Args) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&args.log_level)
        .map_err(|error| Refused(format!("--log-level {}: {error}", args.log_level)))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

fn options_of(args: Args) -> anyhow::Result<Options> {
    let threads = args.threads.count().unwrap_or_else(tensor::physical_cores);
    let (host, models) = host_and_models(&args)?;
    let multi_model = args.multi_model.then(|| multi_model_of(&args));
    let api_keys = args.api_key_file.as_deref().map(ApiKeys::read).transpose();
    let limits = RequestLimits {
        body_bytes: body_limit(args.max_body_bytes)?,
        inputs: inputs_limit(args.max_inputs, args.max_queue),
        timeout: Duration::from_secs_f64(args.timeout),
        connections: args.max_connections,
        header_timeout: Duration::from_secs_f64(args.header_timeout),
        drain: Duration::from_secs_f64(args.drain_timeout),
    };
    let engine = EngineOptions {
        dtype: args.dtype,
        threads,
        teams: usize::from(args.teams),
        max_batch_tokens: args.max_batch_tokens,
        max_queue: args.max_queue,
        truncate: args.auto_truncate,
    };
    let python = PythonOptions {
        program: args.program,
        python: args.python,
        workers: args.workers,
        start_timeout: Duration::from_secs_f64(args.worker_start_timeout),
        memory: args.worker_memory,
        environments: args.environments.unwrap_or_else(PythonOptions::default_environments),
    };
    Ok(Options {
        host,
        port: args.port,
        models,
        engine,
        limits,
        api_keys: api_keys.map_err(|error| Refused(error.to_string()))?.unwrap_or_default(),
        tls: args.tls.as_deref().map(tls_of).transpose()?,
        multi_model,
        default_accept: args.default_accept,
        task: args.task,
        python,
        otlp_endpoint: args.otlp_endpoint,
    })
}

fn multi_model_of(args: &Args) -> MultiModel {
    // What a SageMaker endpoint starts: its network is its own, and nobody there has a key.
    let by_container = variable(MULTI_MODEL).is_some_and(|value| value == "true");
    let trusted_network = by_container && named(args).is_empty() && args.host.is_none() && args.api_key_file.is_none();
    MultiModel { root: args.model_root.clone(), memory: args.model_memory, trusted_network }
}

/// A request of more inputs than can ever wait would be told to try again for ever.
fn inputs_limit(inputs: usize, queue: usize) -> usize {
    if inputs > queue {
        tracing::warn!("--max-inputs is {queue} instead of {inputs}: --max-queue holds no more");
    }
    inputs.min(queue)
}

/// The models that were named.
fn named(args: &Args) -> Vec<&String> {
    args.models.iter().filter(|model| *model != CONTAINER_COMMAND).collect()
}

/// Where to listen and what to serve. Without a model it is the container contract: its directory, all addresses.
fn host_and_models(args: &Args) -> anyhow::Result<(IpAddr, Vec<ModelSpec>)> {
    let named = named(args);
    if !named.is_empty() {
        let models = named.into_iter().map(|model| spec_of(model)).collect::<Result<_, _>>()?;
        return Ok((args.host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), models));
    }
    let host = args.host.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    if args.multi_model {
        return Ok((host, Vec::new()));
    }
    let base = variable("SAGEMAKER_BASE_DIR").map_or_else(|| PathBuf::from(BASE_DIR), PathBuf::from);
    let source = base.join("model");
    if !source.is_dir() {
        let text =
            format!("name a model to serve, or put one into {} as a SageMaker container has it", source.display());
        return Err(Refused(text).into());
    }
    Ok((host, vec![spec_named("model", source.display().to_string())?]))
}

fn spec_of(text: &str) -> Result<ModelSpec, Refused> {
    // A path may hold a `=`; what stands before the first slash in one is no name.
    match text.split_once('=').filter(|(name, _)| !name.contains('/')) {
        Some((name, source)) if name.is_empty() || source.is_empty() => {
            Err(Refused(format!("`{text}`: give NAME=MODEL, both of them")))
        }
        Some((name, source)) => spec_named(name, source),
        None => spec_named(&name_of(text), text),
    }
}

fn spec_named(name: &str, source: impl Into<String>) -> Result<ModelSpec, Refused> {
    ModelSpec::new(name, source).map_err(|error| Refused(format!("the name `{name}` of a model {error}")))
}

/// The last part of a path that says something, with dashes for what no name has: `runs/my tweets/model.tar.gz` is
/// `my-tweets`.
fn name_of(source: &str) -> String {
    let trimmed = source.trim_end_matches('/');
    let parts: Vec<&str> = trimmed.strip_prefix("hf:").unwrap_or(trimmed).split('/').collect();
    let bare = |part: &&str| part.trim_end_matches(".tgz").trim_end_matches(".tar.gz").to_string();
    let mut names = parts.iter().rev().map(bare).filter(|name| !["", ".", ".."].contains(&name.as_str()));
    let last = names.next().unwrap_or_else(|| "model".into());
    let name = if last == "model" { names.next().unwrap_or(last) } else { last };
    let in_a_name = |c: char| ModelSpec::new(c, "").is_ok();
    name.chars().map(|c| if in_a_name(c) { c } else { '-' }).collect()
}

fn body_limit(flag: Option<usize>) -> anyhow::Result<usize> {
    const VARIABLE: &str = "SAGEMAKER_MAX_PAYLOAD_IN_MB";
    const MEGABYTE: usize = 1 << 20;
    match (flag, variable(VARIABLE)) {
        (Some(bytes), _) => Ok(bytes),
        (None, None) => Ok(RequestLimits::default().body_bytes),
        (None, Some(text)) => {
            let text = text.to_string_lossy();
            let megabytes = up_to::<{ MOST_BODY_BYTES / MEGABYTE }>(text.trim());
            let megabytes = megabytes.map_err(|error| Refused(format!("{VARIABLE} is `{text}`; it {error}")))?;
            Ok(megabytes * MEGABYTE)
        }
    }
}

fn warn_if_open(options: &Options) {
    if !options.is_loopback() && options.api_keys.is_empty() {
        tracing::warn!(
            host = %options.host,
            "other machines can connect and no API key is needed; give --api-key-file, or --host 127.0.0.1"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_names_of_their_own_or_those_of_their_paths() {
        let spec = |text: &str| spec_of(text).map(|spec| (spec.name, spec.source)).unwrap();
        assert_eq!(spec("a=runs/b"), ("a".into(), "runs/b".into()));
        assert_eq!(spec("runs/x=1/model"), ("x-1".into(), "runs/x=1/model".into()));
        assert!(spec_of("=b").is_err() && spec_of("a=").is_err());
        assert!(spec_of("a b=c").unwrap_err().0.contains("`a b`"));
        for (source, name) in [
            ("runs/tweets/model.tar.gz", "tweets"),
            ("runs/tweets/", "tweets"),
            ("model", "model"),
            ("sentiment.tgz", "sentiment"),
            ("hf:org/minilm", "minilm"),
            ("../model", "model"),
            ("my runs/one two/model", "one-two"),
        ] {
            assert_eq!(name_of(source), name, "{source}");
        }
    }

    #[test]
    fn a_request_never_has_more_inputs_than_can_wait() {
        assert_eq!((inputs_limit(256, 2048), inputs_limit(256, 200)), (256, 200));
    }
}
