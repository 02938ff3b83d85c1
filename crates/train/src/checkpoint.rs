//! Checkpoints: everything a run needs to go on bit for bit.
//!
//! A checkpoint is a directory `checkpoints/step-N`: a whole model directory, the optimizer's moments and, written last,
//! `state.json`. Every file is written under a temporary name, fsynced and renamed, so a directory with a
//! `state.json` is whole, whatever happened to the machine, and one without is ignored.

use std::path::{Path, PathBuf};

use model::files::{Checkpoint as TensorFile, SaveDType, TensorRef, atomic, write_safetensors};
use model::{Encoder, Model, Weights, load_weights};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tensor::{Kernels, Tensor};

use crate::data::Dataset;
use crate::error::TrainError;
use crate::optimizer::Adamw;
use crate::sampler::SamplerState;

const STATE: &str = "state.json";
const PREFIX: &str = "step-";
/// Version of the layout that this code writes.
const FORMAT: u32 = 1;

/// Where a run stands, besides its tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunState {
    /// Version of the layout.
    pub format: u32,
    /// Updates made.
    pub step: u64,
    /// The next example.
    pub sampler: SamplerState,
    /// Seconds of training so far, over all sessions.
    pub elapsed_seconds: f64,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// The update after which the validation data were evaluated last.
    pub evaluated: Option<u64>,
    /// Evaluations in a row that were no better.
    pub evaluations_without_gain: u32,
    /// What must be the same when the run goes on.
    pub identity: Identity,
    /// Kernels and instruction set of the last session: others round differently.
    pub kernels: String,
}

/// The best evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The update after which it was made.
    pub step: u64,
    /// The selecting metric's value.
    pub value: f64,
}

/// What a run was begun with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The resolved job.
    pub job: Value,
    /// SHA-256 of the model that training started from.
    pub model: String,
    /// The training data.
    pub training: DataIdentity,
    /// The validation data.
    pub validation: Option<DataIdentity>,
    /// Names of the labels, in the order of their ids.
    pub labels: Vec<String>,
}

/// A data set, for comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataIdentity {
    /// Number of examples.
    pub examples: usize,
    /// SHA-256 of the encoded examples.
    pub sha256: String,
}

impl DataIdentity {
    /// That of `data`.
    pub fn of(data: &Dataset) -> Self {
        Self { examples: data.len(), sha256: data.fingerprint() }
    }
}

impl RunState {
    /// The state of a run that has not begun.
    pub fn new(identity: Identity, kernels: String) -> Self {
        Self {
            format: FORMAT,
            step: 0,
            sampler: SamplerState::default(),
            elapsed_seconds: 0.0,
            best: None,
            evaluated: None,
            evaluations_without_gain: 0,
            identity,
            kernels,
        }
    }
}

/// The checkpoints of one run directory.
pub struct Checkpoints {
    root: PathBuf,
}

impl Checkpoints {
    /// Those of `run_dir`.
    pub fn of(run_dir: &Path) -> Self {
        Self { root: run_dir.join("checkpoints") }
    }

    /// Directories of whole checkpoints, oldest first.
    pub fn list(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut found: Vec<PathBuf> = paths.filter(|p| step_of(p).is_some() && p.join(STATE).is_file()).collect();
        found.sort_by_key(|path| step_of(path));
        found
    }

    /// The newest whole checkpoint.
    pub fn latest(&self) -> Option<PathBuf> {
        self.list().pop()
    }

    /// Writes a checkpoint and removes all but the newest `keep`. When anything fails, the older ones stay.
    pub fn save(&self, state: &RunState, model: &Model, optimizer: &Adamw, keep: usize) -> Result<PathBuf, TrainError> {
        let dir = self.root.join(format!("{PREFIX}{:08}", state.step));
        if dir.join(STATE).is_file() {
            // The tensors of this update are there already; only what is known of them has changed.
            write_state(&dir, state)?;
            return Ok(dir);
        }
        std::fs::create_dir_all(&dir).map_err(|cause| TrainError::io("create", &dir, cause))?;
        let written = write_tensors(&dir, model, optimizer)
            .and_then(|()| self.sync_directories())
            .and_then(|()| write_state(&dir, state));
        if written.is_err() {
            // A half checkpoint holds disk space that may be what is missing.
            let _ = std::fs::remove_dir_all(&dir);
        }
        written?;
        self.remove_all_but(keep.max(1))?;
        Ok(dir)
    }

    /// Makes new directories durable before the state that vouches for them, and before older ones go.
    fn sync_directories(&self) -> Result<(), TrainError> {
        let parents = [Some(self.root.as_path()), self.root.parent()];
        let existing = parents.into_iter().flatten().filter(|dir| !dir.as_os_str().is_empty());
        existing
            .into_iter()
            .try_for_each(|dir| atomic::sync_dir(dir).map_err(|cause| TrainError::io("sync the directory", dir, cause)))
    }

    /// Removes what a killed process left: checkpoints without a state, and files with temporary names.
    pub fn remove_leftovers(&self, run_dir: &Path) {
        let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
        for dir in entries(&self.root).filter(|path| step_of(path).is_some() && !path.join(STATE).is_file()) {
            let _ = std::fs::remove_dir_all(dir);
        }
        for path in entries(run_dir).chain(entries(&run_dir.join("model"))) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') && name.ends_with(".tmp") {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    fn remove_all_but(&self, keep: usize) -> Result<(), TrainError> {
        let mut all = self.list();
        all.truncate(all.len().saturating_sub(keep));
        for dir in all {
            // The state goes first: what a crash leaves behind is not a checkpoint any more.
            std::fs::remove_file(dir.join(STATE)).map_err(|cause| TrainError::io("remove", dir.join(STATE), cause))?;
            std::fs::remove_dir_all(&dir).map_err(|cause| TrainError::io("remove", &dir, cause))?;
        }
        Ok(())
    }
}

fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()
}

fn write_tensors(dir: &Path, model: &Model, optimizer: &Adamw) -> Result<(), TrainError> {
    model.save(dir)?;
    let optimizer_dir = dir.join("optimizer");
    std::fs::create_dir_all(&optimizer_dir).map_err(|cause| TrainError::io("create", &optimizer_dir, cause))?;
    let named: Vec<(String, &Tensor)> = optimizer
        .moments()
        .flat_map(|(id, moments)| {
            let name = &model.weights.descriptor(id).name;
            [(format!("{name}.first"), &moments.first), (format!("{name}.second"), &moments.second)]
        })
        .collect();
    let tensors: Vec<TensorRef> = named
        .iter()
        .map(|(name, tensor)| TensorRef { name, shape: tensor.shape(), data: tensor.as_slice::<f32>() })
        .collect();
    write_safetensors(&optimizer_dir.join("model.safetensors"), &tensors, SaveDType::F32, &[])?;
    atomic::sync_dir(dir).map_err(|cause| TrainError::io("sync the directory", dir, cause))
}

fn write_state(dir: &Path, state: &RunState) -> Result<(), TrainError> {
    let text = serde_json::to_string_pretty(state).map_err(|e| TrainError::io("write", dir.join(STATE), e.into()))?;
    Ok(atomic::write(&dir.join(STATE), |file| std::io::Write::write_all(file, text.as_bytes()))?)
}

/// Reads the state of a checkpoint.
pub fn read_state(dir: &Path) -> Result<RunState, TrainError> {
    let path = dir.join(STATE);
    let text = std::fs::read_to_string(&path).map_err(|cause| TrainError::io("read", &path, cause))?;
    let state: RunState =
        serde_json::from_str(&text).map_err(|e| damaged_checkpoint(dir, &format!("`{}`: {e}", path.display())))?;
    if state.format != FORMAT {
        let problem = format!("format {} is not the format {FORMAT} of this version", state.format);
        return Err(TrainError::Resume(format!("`{}`: {problem}", path.display())));
    }
    Ok(state)
}

/// A checkpoint that was whole once and cannot be read now.
pub fn damaged_checkpoint(dir: &Path, cause: &dyn std::fmt::Display) -> TrainError {
    TrainError::Resume(format!("{cause}; delete `{}` to go on from the checkpoint before it", dir.display()))
}

/// Reads the tensors of a checkpoint back: master weights and moments.
pub fn read_tensors(
    dir: &Path,
    state: &RunState,
    encoder: &Encoder,
    optimizer: &mut Adamw,
    kernels: &dyn Kernels,
) -> Result<Weights, TrainError> {
    let (weights, _) = load_weights(encoder, dir, None, kernels)?;
    let file = TensorFile::open(&dir.join("optimizer"))?;
    optimizer.restore(state.step, |id, moments| {
        let name = &weights.descriptor(id).name;
        for (part, tensor) in [("first", &mut moments.first), ("second", &mut moments.second)] {
            file.read_f32(&format!("{name}.{part}"), tensor.as_mut_slice::<f32>())?;
        }
        Ok::<(), TrainError>(())
    })?;
    Ok(weights)
}
