//! `metrics.jsonl`: one line for every update and every evaluation of a run.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use model::files::atomic;
use serde_json::Value;

use crate::checkpoint::RunState;
use crate::error::TrainError;

/// The log of a run, open at its end.
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Opens the log in `run_dir`. Lines of what `state` does not know belong to work that was lost and is done again:
    /// they go.
    pub fn open(run_dir: &Path, state: &RunState) -> Result<Self, TrainError> {
        let path = run_dir.join("metrics.jsonl");
        let failed = |cause| TrainError::io("open", &path, cause);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let kept: String = text.split_inclusive('\n').filter(|line| is_known(line, state) == Some(true)).collect();
        atomic::write(&path, |file| file.write_all(kept.as_bytes()))?;
        let file = std::fs::OpenOptions::new().append(true).open(&path).map_err(failed)?;
        Ok(Self { path, file })
    }

    /// Makes the lines so far durable.
    pub fn sync(&self) -> Result<(), TrainError> {
        self.file.sync_data().map_err(|cause| TrainError::io("sync", &self.path, cause))
    }

    /// Adds a line.
    pub fn write(&mut self, line: &Value) -> Result<(), TrainError> {
        writeln!(self.file, "{line}").map_err(|cause| TrainError::io("write", &self.path, cause))
    }
}

/// Whether a line tells of something that happened before `state`; `None` for a line that was cut off.
fn is_known(line: &str, state: &RunState) -> Option<bool> {
    let value: Value = serde_json::from_str(line).ok()?;
    Some(match value.get("train") {
        Some(update) => update.get("step")?.as_u64()? <= state.step,
        None => Some(value.get("step")?.as_u64()?) <= state.evaluated,
    })
}
