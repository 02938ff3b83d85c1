//! Python handlers: a model's own `code/inference.py` in supervised worker processes.
//!
//! [`Handler::start`] installs `requirements.txt` beside the script into an environment of its own, starts the workers and
//! loads the model in each; [`Handler::invoke`] answers one request with one of them. The contract is that of the
//! inference toolkits for SageMaker and Hugging Face, each function with `context` as an optional last parameter:
//!
//! | function | parameters | where it is missing |
//! |---|---|---|
//! | `model_fn` | `model_dir` | an error, unless the script only reads and writes |
//! | `input_fn` | `body, content_type` | JSON, jsonlines, CSV, text, and npy where numpy is there |
//! | `predict_fn` | `data, model` | the model is called: `model(inputs, **parameters)` or `model(data)` |
//! | `output_fn` | `prediction, accept` | JSON, jsonlines, CSV, text or npy, by Accept |
//! | `transform_fn` | `model, body, content_type, accept` | the three above; it excludes them |
//! | `pre_model_fn` | `model_dir` | nothing runs before `model_fn` |
//! | `model_warmup_fn` | `model_dir, model` | nothing runs after `model_fn` |
//!
//! Bodies of text types (`text/*`, JSON, jsonlines) arrive as `str`, decoded by their `charset`, which the content type
//! then no longer has; others as `bytes`. `output_fn` and `transform_fn` return `str`, `bytes`, something that JSON can
//! carry, or `(body, content_type)`. An exception may have a `status_code` or `error_code` between 400 and 599.
//!
//! What the script prints goes to the log, and so do records of `logging` from INFO on, at their own level; each line has
//! the model's name and the worker's number.
//!
//! A worker answers one request at a time. A worker that ends, breaks the protocol or passes a request's deadline is killed with its process group and started again, after 100 ms
//! at first and at most 10 s; only the request it had fails. On Linux, workers die with the server.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    sync::{Mutex, oneshot},
    task::JoinSet,
    time::timeout_at,
};

mod environment;
mod error;
mod frame;
mod functions;
mod output;
mod process;
mod queue;
mod supervisor;
mod worker;

pub use error::{HandlerError, Raised};
pub use functions::{Function, Functions};

use queue::{Operation, Queue, Rejected};
use supervisor::{Shared, supervise};
use worker::Plan;

/// How a handler is run; [`HandlerOptions::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct HandlerOptions {
    /// The model's name, for the log.
    pub name: String,
    /// The unpacked model, passed to `model_fn`.
    pub model_dir: PathBuf,
    /// The script, relative to `code/` in the model's directory (a leading `code/` is optional), or absolute.
    pub code: PathBuf,
    /// The base interpreter, Python 3.9 or later.
    pub python: PathBuf,
    /// Worker processes; each loads the model.
    pub workers: usize,
    /// Time for a worker to import the script and load the model.
    pub start_timeout: Duration,
    /// Time to make the virtual environment and install the requirements.
    pub install_timeout: Duration,
    /// Bytes of address space (`RLIMIT_AS`) of each worker; an allocation beyond it raises `MemoryError`.
    pub memory_limit: Option<u64>,
    /// Where virtual environments and the workers' own program live; shared by models and kept over restarts.
    pub environments: PathBuf,
    /// Requests that may wait for a free worker.
    pub queue: usize,
    /// Bytes of a request's body.
    pub request_limit: u64,
    /// Bytes of a response's body; `None` for any size.
    pub response_limit: Option<u64>,
}

impl HandlerOptions {
    /// Named like the model's directory; one worker with `python3`, one minute to load, 15 minutes to install, 256 waiting requests, bodies up to 1 GiB,
    /// responses and memory unlimited.
    pub fn new(model_dir: impl Into<PathBuf>, code: impl Into<PathBuf>, environments: impl Into<PathBuf>) -> Self {
        let model_dir = model_dir.into();
        Self {
            name: model_dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            model_dir,
            code: code.into(),
            python: "python3".into(),
            workers: 1,
            start_timeout: Duration::from_secs(60),
            install_timeout: Duration::from_secs(15 * 60),
            memory_limit: None,
            environments: environments.into(),
            queue: 256,
            request_limit: 1 << 30,
            response_limit: None,
        }
    }
}

/// One request for the script.
#[derive(Debug, Clone)]
pub struct Request {
    /// The Content-Type header; empty is read as `application/json`.
    pub content_type: String,
    /// The Accept header; empty or `*/*` is read as `application/json`.
    pub accept: String,
    /// The body as it came.
    pub body: Bytes,
    /// All headers, for `context`.
    pub headers: Vec<(String, String)>,
    /// When the caller stops waiting.
    pub deadline: Instant,
}

/// The script's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The Content-Type header.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
    /// 200, or what the script set by `context.set_response_status`.
    pub status: u16,
    /// Other headers that the script set by `context.set_response_header`: at most 64, each with a valid name and value, and
    /// none of those that belong to the connection.
    pub headers: Vec<(String, String)>,
}

/// The state of a handler's workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkersStatus {
    /// Workers that there should be.
    pub workers: usize,
    /// Workers with their model loaded.
    pub alive: usize,
    /// Times that a lost worker was started again.
    pub restarts: u64,
    /// Requests that wait for a free worker.
    pub waiting: usize,
}

/// A script with its workers. Dropping it kills them; [`Handler::stop`] lets them finish.
pub struct Handler {
    functions: Functions,
    script: PathBuf,
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
    workers: usize,
    request_limit: u64,
    capacity: usize,
}

impl Handler {
    /// Installs the requirements, starts the workers and loads the model in each of them.
    ///
    /// # Errors
    /// The script or interpreter cannot be used, the requirements not be installed, or the script fails to load in one
    /// worker; no process is left then.
    pub async fn start(options: HandlerOptions) -> Result<Self, HandlerError> {
        let (model_dir, script) = locate(&options)?;
        let (python, environment) = environment::prepare(&options, &script).await?;
        let plan = Plan {
            name: options.name.as_str().into(),
            script: script.clone(),
            model_dir,
            python,
            environment,
            program: Plan::program(&options)?,
            start_timeout: options.start_timeout,
            memory_limit: options.memory_limit,
            response_limit: options.response_limit,
        };
        let (workers, capacity) = (options.workers.max(1), options.queue.max(1));
        let shared = Arc::new(Shared::new(plan, Queue::new(capacity), workers));
        let mut tasks = JoinSet::new();
        let mut starts = Vec::with_capacity(workers);
        for slot in 0..workers {
            let (started, start) = oneshot::channel();
            tasks.spawn(supervise(shared.clone(), slot, started));
            starts.push(start);
        }
        let mut functions = Err(HandlerError::Stopped);
        for start in starts {
            functions = start.await.unwrap_or(Err(HandlerError::Stopped));
            if functions.is_err() {
                break;
            }
        }
        match functions {
            Ok(functions) => {
                tracing::info!(model = options.name, workers, "{functions}");
                for warning in functions.warnings() {
                    tracing::warn!(model = options.name, "{}: {warning}", script.display());
                }
                let (tasks, request_limit) = (Mutex::new(tasks), options.request_limit);
                Ok(Self { functions, script, shared, tasks, workers, request_limit, capacity })
            }
            Err(error) => {
                tasks.shutdown().await;
                Err(error)
            }
        }
    }

    /// The functions of the script that are used.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Reads, predicts and writes.
    ///
    /// # Errors
    /// See [`HandlerError`]; among them the script's own exceptions.
    pub async fn invoke(&self, request: Request) -> Result<Response, HandlerError> {
        if !self.functions.predicts() {
            return Err(HandlerError::PredictsNothing { script: self.script.clone() });
        }
        self.submit(Operation::Invoke, request).await
    }

    /// Only reads: what `input_fn` makes of a request, for an engine outside the script.
    ///
    /// # Errors
    /// As [`Handler::invoke`]; also when JSON cannot carry what `input_fn` returned.
    pub async fn input(&self, request: Request) -> Result<serde_json::Value, HandlerError> {
        let read = self.submit(Operation::Input, request).await?;
        serde_json::from_slice(&read.body)
            .map_err(|error| HandlerError::Process { worker: 0, reason: format!("input_fn's value: {error}") })
    }

    /// Only writes: what `output_fn` makes of a prediction from outside the script.
    ///
    /// # Errors
    /// As [`Handler::invoke`].
    pub async fn output(
        &self,
        prediction: &serde_json::Value,
        accept: String,
        headers: Vec<(String, String)>,
        deadline: Instant,
    ) -> Result<Response, HandlerError> {
        let body = Bytes::from(prediction.to_string());
        let content_type = "application/json".to_owned();
        self.submit(Operation::Output, Request { content_type, accept, body, headers, deadline }).await
    }

    async fn submit(&self, operation: Operation, request: Request) -> Result<Response, HandlerError> {
        let (size, limit) = (request.body.len() as u64, self.request_limit);
        if size > limit && operation != Operation::Output {
            return Err(HandlerError::RequestTooLarge { part: "body", size, limit });
        }
        if let Some(error) = self.shared.unavailable() {
            return Err(error);
        }
        let deadline = request.deadline;
        let mut ticket = self.shared.queue.push(operation, request).map_err(|rejected| match rejected {
            Rejected::Full => HandlerError::Overloaded { queue: self.capacity, workers: self.workers },
            Rejected::Closed => HandlerError::Stopped,
        })?;
        // The last worker may have failed since it was asked for above.
        self.shared.refuse_waiting();
        match timeout_at(deadline.into(), &mut ticket.answer).await {
            Ok(answer) => answer.unwrap_or(Err(HandlerError::Stopped)),
            Err(_) => Err(HandlerError::DeadlineExceeded { running: ticket.running() }),
        }
    }

    /// Takes no more requests, lets the workers answer those that wait, and ends them.
    pub async fn stop(&self) {
        self.shared.queue.close();
        let mut tasks = self.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
    }

    /// How the workers are.
    pub fn status(&self) -> WorkersStatus {
        let (alive, restarts) = (self.shared.alive(), self.shared.restarts());
        WorkersStatus { workers: self.workers, alive, restarts, waiting: self.shared.queue.len() }
    }
}

/// The model's directory and the script, both absolute.
fn locate(options: &HandlerOptions) -> Result<(PathBuf, PathBuf), HandlerError> {
    let unreadable =
        |path: &Path, error: std::io::Error| HandlerError::Script { path: path.to_owned(), reason: error.to_string() };
    let model_dir = options.model_dir.canonicalize().map_err(|error| unreadable(&options.model_dir, error))?;
    let relative = options.code.strip_prefix("code").unwrap_or(&options.code);
    let path = model_dir.join("code").join(relative);
    let script = path.canonicalize().map_err(|error| unreadable(&path, error))?;
    if !script.is_file() {
        let reason = "it is not a file; name the script, such as inference.py".to_owned();
        return Err(HandlerError::Script { path: script, reason });
    }
    Ok((model_dir, script))
}
