//! A run that records itself: the profile in its run directory.
//!
//! | what | table | name |
//! |---|---|---|
//! | an update | `host`, annotation | `step_12`, as numbered in `metrics.jsonl` |
//! | its parts | `host`, annotation | `data_loading`, `micro_batch`, in it `forward` and `backward`, `optimizer` |
//! | between updates | `host`, annotation | `evaluation`, `checkpoint`, `save_model` |
//! | every fused kernel | `device`, kernel on stream `compute` of device 0 | the operation of [`tensor::Kernels`], its sizes in `args` |
//! | the memory pool after an update | `memory` and `counters` | `high_water`; `memory_pool` |

mod kernels;
mod window;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tensor::{Kernels, Pool, PoolStats};
use trace::recorder::{Counter, Handle, Lane, Memory, MemoryKind, Name, Options, Recorder};

use crate::error::TrainError;

pub use kernels::RecordingKernels;
pub use window::Window;

/// Name of the directory in the run directory; a run that goes on takes the next free `profile-2`, `profile-3`, …
const DIRECTORY: &str = "profile";

/// The names of a training run's annotations.
pub struct Names {
    pub step: Name,
    pub data_loading: Name,
    pub micro_batch: Name,
    pub forward: Name,
    pub backward: Name,
    pub optimizer: Name,
    pub evaluation: Name,
    pub checkpoint: Name,
    pub save_model: Name,
    pool: [Counter; 3],
}

/// The names of a training run's annotations.
pub static NAMES: LazyLock<Names> = LazyLock::new(|| Names {
    step: Name::with_values("step", &["examples", "tokens", "micro_batches"]),
    data_loading: Name::with_values("data_loading", &["examples", "tokens"]),
    micro_batch: Name::with_values("micro_batch", &["index", "examples", "tokens"]),
    forward: Name::new("forward"),
    backward: Name::new("backward"),
    optimizer: Name::new("optimizer"),
    evaluation: Name::with_values("evaluation", &["examples"]),
    checkpoint: Name::with_values("checkpoint", &["bytes"]),
    save_model: Name::with_values("save_model", &["bytes"]),
    pool: ["live", "high_water", "reserved"].map(|series| Counter::new("memory_pool", series, "B")),
});

/// A run's profile: to come, being recorded, or done.
pub struct Profiling {
    window: Option<Window>,
    state: State,
    /// The most that tensors held at once, before marks were taken: taking one starts a new measurement.
    peak: usize,
}

enum State {
    Off,
    /// The directory is there, and empty, until the first update of the window.
    Waiting(PathBuf),
    Recording(Recorder),
    Done(PathBuf),
}

impl Profiling {
    /// No profile.
    pub fn off() -> Self {
        Self { window: None, state: State::Off, peak: 0 }
    }

    /// A profile of updates in `window`, or of all, in a new directory of `run_dir`.
    pub fn in_directory(run_dir: &Path, window: Option<Window>) -> Result<Self, TrainError> {
        let named = |number: u32| match number {
            1 => run_dir.join(DIRECTORY),
            number => run_dir.join(format!("{DIRECTORY}-{number}")),
        };
        let free = (1..u32::MAX).map(named).find(|path| !path.exists()).unwrap_or_else(|| named(1));
        std::fs::create_dir(&free).map_err(|cause| TrainError::io("create", &free, cause))?;
        Ok(Self { window, state: State::Waiting(free), peak: 0 })
    }

    /// Where threads record.
    pub fn handle(&self) -> Handle {
        match &self.state {
            State::Recording(recorder) => recorder.handle(),
            _ => Handle::off(),
        }
    }

    /// Starts or ends the recording before this update, as the window says; whether it did either.
    pub fn before_update(&mut self, update: u64, kernels: &dyn Kernels) -> Result<bool, trace::Error> {
        if let State::Waiting(path) = &self.state
            && self.window.is_none_or(|window| update >= window.first)
        {
            let path = path.clone();
            self.state = State::Off;
            self.state = State::Recording(start(&path)?);
            self.keep_peak(kernels.pool());
            return Ok(true);
        }
        match self.window {
            Some(window) if update >= window.end => self.finish(),
            _ => Ok(false),
        }
    }

    /// Ends the recording, if there is one; whether there was.
    pub fn finish(&mut self) -> Result<bool, trace::Error> {
        match std::mem::replace(&mut self.state, State::Off) {
            State::Recording(recorder) => {
                self.state = State::Done(recorder.finish()?.path);
                Ok(true)
            }
            state => {
                self.state = state;
                Ok(false)
            }
        }
    }

    /// The finished profile. A directory in which nothing was recorded goes.
    pub fn close(&mut self) -> Option<PathBuf> {
        match std::mem::replace(&mut self.state, State::Off) {
            State::Done(path) => Some(path),
            State::Waiting(path) => {
                // Empty, unless it is not ours any more.
                let _ = std::fs::remove_dir(path);
                None
            }
            _ => None,
        }
    }

    /// Ends what there is, whatever becomes of it: the run has failed.
    pub fn abandon(&mut self) {
        let _ = self.finish();
        self.close();
    }

    /// Whether a window is still to come.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Marks the most that the pool's tensors held since the mark before.
    pub fn mark_memory(&mut self, lane: &Lane, pool: &Pool) {
        if !lane.is_on() {
            return;
        }
        let PoolStats { live, peak, reserved, .. } = self.keep_peak(pool);
        let [live, peak, reserved] = [live, peak, reserved].map(|bytes| bytes as i64);
        lane.memory(&Memory {
            kind: MemoryKind::HighWater,
            address: None,
            bytes: Some(peak),
            allocated: Some(live),
            reserved: Some(reserved),
            device: Some(0),
        });
        for (counter, value) in NAMES.pool.into_iter().zip([live, peak, reserved]) {
            lane.counter(counter, value as f64);
        }
    }

    fn keep_peak(&mut self, pool: &Pool) -> PoolStats {
        let stats = pool.stats();
        self.peak = self.peak.max(stats.peak);
        pool.reset_peak();
        stats
    }

    /// The pool's counters as they would be had no marks been taken.
    pub fn pool_stats(&self, pool: &Pool) -> PoolStats {
        let stats = pool.stats();
        PoolStats { peak: stats.peak.max(self.peak), ..stats }
    }
}

fn start(path: &Path) -> Result<Recorder, trace::Error> {
    let run = path.parent().and_then(Path::file_name).map_or_else(|| "run".into(), |name| name.to_string_lossy());
    Recorder::start(Options::new(path, &run))
}

/// Bytes of the files in a directory and below it.
pub fn directory_bytes(dir: &Path) -> i64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => directory_bytes(&entry.path()),
        Ok(metadata) => metadata.len() as i64,
        Err(_) => 0,
    });
    sizes.sum()
}
