//! Python handlers as their users meet them: scripts in a directory, requests, failures.

mod contract;
mod failures;
mod formats;
mod lifetime;
mod log;
mod requirements;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

use serve::python::{Handler, HandlerError, HandlerOptions, Request, Response};
use tempfile::TempDir;

/// The interpreter itself: a version manager's shim would start a shell first, for every test.
fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| {
            let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().into()
        })
        .clone()
}

/// A model's directory with `code/inference.py`, and environments beside it.
struct Model(TempDir);

impl Model {
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("model/code")).unwrap();
        let model = Self(directory);
        model.write("inference.py", script);
        model
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.code().join(name), text).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn code(&self) -> PathBuf {
        self.path().join("model/code")
    }

    fn options(&self) -> HandlerOptions {
        let mut options =
            HandlerOptions::new(self.path().join("model"), "inference.py", self.path().join("environments"));
        options.python = python();
        options
    }

    async fn start(&self) -> Handler {
        Handler::start(self.options()).await.unwrap()
    }

    async fn start_error(&self) -> HandlerError {
        Handler::start(self.options()).await.err().expect("the script must not start")
    }
}

fn request(content_type: &str, body: impl AsRef<[u8]>) -> Request {
    Request {
        content_type: content_type.into(),
        accept: "application/json".into(),
        body: body.as_ref().to_vec().into(),
        headers: Vec::new(),
        deadline: Instant::now() + Duration::from_secs(20),
    }
}

fn json(body: &str) -> Request {
    request("application/json", body)
}

fn text(response: &Response) -> &str {
    std::str::from_utf8(&response.body).unwrap()
}

/// The answer's body as text.
async fn ask(handler: &Handler, body: &str) -> Result<String, HandlerError> {
    Ok(text(&handler.invoke(json(body)).await?).to_owned())
}

/// Whether a process runs (a zombie does not).
fn runs(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

/// Polls until `done`, for twenty seconds on a busy machine.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within 20 s");
}
