//! One live worker process: how it starts, and one exchange with it.

use std::{
    ffi::OsString,
    fs, io,
    io::Write as _,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::{net::UnixStream, process::Command, time::timeout};

use super::{
    Functions, HandlerError, HandlerOptions, Raised,
    frame::{self, Answer, Ask, HEADER_LIMIT},
    output::{Origin, indented, visible},
    process::Process,
};

/// The program of a worker and the module that it imports.
const FILES: [(&str, &str); 2] =
    [("trainyard_worker.py", include_str!("worker.py")), ("trainyard_formats.py", include_str!("formats.py"))];
/// Time for a dying process to end after its socket closed, and for a stopped one to clean up.
const CRASH_GRACE: Duration = Duration::from_secs(1);
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Everything that starting one more worker needs.
#[derive(Debug)]
pub(super) struct Plan {
    pub name: Arc<str>,
    pub script: PathBuf,
    pub model_dir: PathBuf,
    pub python: PathBuf,
    pub environment: Option<PathBuf>,
    pub program: PathBuf,
    pub start_timeout: Duration,
    pub memory_limit: Option<u64>,
    pub response_limit: Option<u64>,
}

impl Plan {
    /// Writes the worker's program under `options.environments`, under a name of its content's hash.
    pub(super) fn program(options: &HandlerOptions) -> Result<PathBuf, HandlerError> {
        let digest = FILES.iter().fold(Sha256::new(), |digest, (_, text)| digest.chain_update(text)).finalize();
        let hash: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let directory = options.environments.join(format!("worker-{hash}"));
        let failed = |error: io::Error| HandlerError::Script { path: directory.clone(), reason: error.to_string() };
        let absolute = std::path::absolute(&directory).map_err(failed)?;
        fs::create_dir_all(&absolute).map_err(failed)?;
        for (name, text) in FILES {
            let path = absolute.join(name);
            if fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
                continue;
            }
            let mut file = tempfile::NamedTempFile::new_in(&absolute).map_err(failed)?;
            file.write_all(text.as_bytes()).map_err(failed)?;
            file.persist(&path).map_err(|error| failed(error.error))?;
        }
        Ok(absolute.join(FILES[0].0))
    }

    fn not_run(&self, error: &io::Error) -> String {
        format!("cannot run {} for {}: {error}", self.python.display(), self.script.display())
    }

    fn command(&self, socket: OwnedFd) -> Command {
        let mut command = Command::new(&self.python);
        command.args(["-u", "-X", "faulthandler"]).arg(&self.program).stdin(Stdio::from(socket));
        command.current_dir(self.script.parent().unwrap_or(Path::new(".")));
        // A model's directory may be shared, read-only or hashed: nothing is compiled into it.
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONIOENCODING", "utf-8:backslashreplace");
        if let Some(environment) = &self.environment {
            let mut path = OsString::from(environment.join("bin"));
            if let Some(rest) = std::env::var_os("PATH") {
                path.push(":");
                path.push(rest);
            }
            command.env("VIRTUAL_ENV", environment).env("PATH", path);
        }
        command
    }
}

/// A worker with its model loaded.
pub(super) struct Worker {
    model: Arc<str>,
    number: usize,
    process: Process,
    socket: UnixStream,
    memory_limit: Option<u64>,
    response_limit: Option<u64>,
}

/// What an exchange that did not end with an answer leaves behind.
pub(super) enum Failure {
    /// The worker said no and goes on.
    Answered(HandlerError),
    /// The worker is of no more use: it ended, or broke the protocol.
    Lost { stage: &'static str, reason: Option<String> },
}

impl Worker {
    /// Starts a process, imports the script and loads its model.
    pub(super) async fn start(plan: &Plan, number: usize) -> Result<(Self, Functions), HandlerError> {
        let failed = |error: io::Error| HandlerError::Process { worker: number, reason: error.to_string() };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let socket = UnixStream::from_std(ours).map_err(failed)?;
        let command = plan.command(theirs.into());
        let origin = Origin::Worker { model: plan.name.clone(), worker: number };
        let process = Process::spawn(command, origin, plan.memory_limit)
            .await
            .map_err(|error| HandlerError::Process { worker: number, reason: plan.not_run(&error) })?;
        let (memory_limit, response_limit) = (plan.memory_limit, plan.response_limit);
        let mut worker = Self { model: plan.name.clone(), number, process, socket, memory_limit, response_limit };
        let mut stage = "import";
        let started = timeout(plan.start_timeout, worker.load(plan, &mut stage)).await;
        match started {
            Ok(Ok(functions)) => Ok((worker, functions)),
            Ok(Err(Failure::Answered(error))) => {
                worker.end(Duration::ZERO).await;
                Err(error)
            }
            Ok(Err(Failure::Lost { stage, reason })) => Err(worker.lost(stage, reason).await),
            Err(_) => {
                let stderr = worker.end(Duration::ZERO).await.stderr;
                Err(HandlerError::StartTimeout { stage, limit: plan.start_timeout, stderr })
            }
        }
    }

    async fn load(&mut self, plan: &Plan, stage: &mut &'static str) -> Result<Functions, Failure> {
        let ask = Ask::Import {
            script: &plan.script.to_string_lossy(),
            model_dir: &plan.model_dir.to_string_lossy(),
            response_limit: plan.response_limit,
            version: env!("CARGO_PKG_VERSION"),
        };
        let (imported, _) = self.exchange(&ask, &[]).await?;
        let functions = Functions::check(&plan.script, &imported.functions, &imported.others);
        let functions = functions.map_err(Failure::Answered)?;
        *stage = "model_fn";
        let (loaded, _) = self.exchange(&Ask::Load, &[]).await?;
        functions.with_model(loaded.callable, &loaded.model).map_err(Failure::Answered)
    }

    /// Sends one request and waits for the answer. A cancelled exchange leaves the worker useless.
    pub(super) async fn exchange(&mut self, ask: &Ask<'_>, body: &[u8]) -> Result<(Answer, Bytes), Failure> {
        let stage = ask.stage();
        self.process.tail().clear();
        let lost = |reason: Option<String>| Failure::Lost { stage, reason };
        let header = serde_json::to_vec(ask).map_err(|error| lost(Some(error.to_string())))?;
        if header.len() as u64 > HEADER_LIMIT {
            let size = header.len() as u64;
            let error = HandlerError::RequestTooLarge { part: "headers", size, limit: HEADER_LIMIT };
            return Err(Failure::Answered(error));
        }
        let limit = self.response_limit;
        let socket = &mut self.socket;
        let talk = async {
            frame::write(socket, &header, body).await?;
            frame::read(socket, limit).await
        };
        let (answer, body) = tokio::select! {
            biased;
            frame = talk => frame.map_err(|error| lost(protocol_error(&error)))?,
            _ = self.process.wait() => return Err(lost(None)),
        };
        if answer.ok {
            return Ok((answer, body));
        }
        Err(Failure::Answered(self.refusal(answer)))
    }

    fn refusal(&self, answer: Answer) -> HandlerError {
        let (model, worker) = (&*self.model, self.number);
        if let (Some(size), Some(limit)) = (answer.too_large, self.response_limit) {
            let error = HandlerError::ResponseTooLarge { size, limit };
            tracing::error!(model, worker, "{error}");
            return error;
        }
        let raised = Raised {
            stage: answer.stage,
            exception: answer.exception,
            message: answer.message,
            location: answer.location,
            status: answer.status,
            refused: answer.refused,
        };
        let (said, trace) = (raised.to_string(), indented(answer.traceback.lines()));
        let said = visible(&said);
        match raised.status {
            500.. => tracing::error!(model, worker, "{said}{trace}"),
            // Raised in the script's own code: meant for the client, or a slip in the script.
            _ if raised.location.is_some() => tracing::warn!(model, worker, "{said}{trace}"),
            _ => tracing::debug!(model, worker, "{said}{trace}"),
        }
        if answer.memory {
            return HandlerError::OutOfMemory { stage: raised.stage, limit: self.memory_limit };
        }
        HandlerError::Raised(raised)
    }

    /// Ends a worker that [`Failure::Lost`] names, and logs the error with its last lines; the error itself has its exit and
    /// one of them.
    pub(super) async fn lost(self, stage: &'static str, reason: Option<String>) -> HandlerError {
        let (model, worker) = (self.model.clone(), self.number);
        let (error, lines) = match reason {
            Some(reason) => {
                let end = self.end(Duration::ZERO).await;
                (HandlerError::Process { worker, reason }, end.lines)
            }
            None => {
                let End { exit, stderr, lines } = self.end(CRASH_GRACE).await;
                (HandlerError::Crashed { worker, stage, exit, stderr }, lines)
            }
        };
        tracing::error!(model = &*model, worker, "{error}{}", indented(lines.iter().map(String::as_str)));
        error
    }

    /// Resolves when the process has ended by itself.
    pub(super) async fn ended(&mut self) {
        let _ = self.process.wait().await;
    }

    /// Lets an idle worker clean up and go.
    pub(super) async fn stop(self) {
        self.end(STOP_GRACE).await;
    }

    /// Kills the worker at once.
    pub(super) async fn kill(self) {
        self.end(Duration::ZERO).await;
    }

    /// Closes the socket, on which a worker leaves by itself.
    async fn end(self, grace: Duration) -> End {
        drop(self.socket);
        let tail = self.process.tail();
        let exit = self.process.end(grace).await;
        End { exit, stderr: tail.reason(), lines: tail.lines() }
    }
}

/// How a worker ended.
struct End {
    exit: String,
    /// The line on stderr that says most.
    stderr: Option<String>,
    /// The last lines on stderr.
    lines: Vec<String>,
}

/// `None` where the worker just went away, which its exit explains better.
fn protocol_error(error: &io::Error) -> Option<String> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    (!matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
        .then(|| format!("its answer cannot be read: {error}"))
}
