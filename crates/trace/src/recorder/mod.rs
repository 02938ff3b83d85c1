//! Recording what a program does, while it does it.
//!
//! [`Recorder::start`] opens a profile and a thread that writes it. Every thread of the program records through a [`Lane`] of
//! its own: spans, instants, counters, launches, and the work of device [`Stream`]s. A lane is a ring of fixed size without
//! locks; when it is full, events are dropped and counted. The writer's thread empties the rings, turns the processor's
//! ticks into nanoseconds of `CLOCK_MONOTONIC`, and writes a segment about every second, so a killed program leaves a
//! readable profile without its last segment. Small segments are put together as they add up, and when the recording ends.
//!
//! ```
//! use trace::recorder::{Name, Options, Recorder};
//! use trace::schema::Table;
//!
//! let dir = tempfile::tempdir()?;
//! let recorder = Recorder::start(Options::new(&dir.path().join("run.profile"), "run"))?;
//! let forward = Name::new("forward");
//! recorder.here(|lane| {
//!     let _step = lane.step(Name::new("step"), 1);
//!     let _span = lane.span(forward);
//! });
//! let summary = recorder.finish()?;
//! assert_eq!((summary.recorded, summary.dropped), (2, 0));
//!
//! let rows = trace::Profile::open(&summary.path)?.read(Table::Host, &["name", "depth"])?;
//! assert_eq!(rows.text(rows.texts("name")[0]), "step_1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod event;
mod handle;
mod hardware;
mod host;
mod lane;
mod names;
mod rows;
mod sink;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::store::{Error, Writer};

pub use handle::{Device, Handle};
pub use lane::{Collective, Correlation, Lane, Memory, MemoryKind, Span, Stream, Time, Work};
pub use names::{Counter, Name};

use handle::Shared;
use sink::{Disk, Sink};

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// The profile's directory: new or empty.
    pub path: PathBuf,
    /// Name of the profile.
    pub name: String,
    /// Rank of this process in its job.
    pub rank: i64,
    /// Ranks in the job.
    pub world_size: i64,
    /// Rows after which a segment is written, and after which one of a table is never put together with others again. The
    /// writer's thread keeps at most twice as many rows of a table in memory, about 200 bytes each; the rings come on top.
    pub segment_rows: usize,
    /// Time after which a segment is written; in a recording of more than 100 times as long, a hundredth of its length.
    pub segment_interval: Duration,
    /// Slots of 32 bytes in each thread's ring: a span or a counter takes one, a kernel two or three.
    pub ring_slots: usize,
    /// How often counters of the host are sampled, if they are.
    pub host_counters: Option<Duration>,
    /// Whether counters of the processor are sampled along with them, where the kernel allows it.
    pub hardware_counters: bool,
}

impl Options {
    /// A profile of rank 0 of 1 in `path`, with all counters.
    pub fn new(path: &Path, name: &str) -> Self {
        Self {
            path: path.to_owned(),
            name: name.into(),
            rank: 0,
            world_size: 1,
            segment_rows: 1 << 16,
            segment_interval: Duration::from_secs(1),
            ring_slots: 1 << 16,
            host_counters: Some(Duration::from_millis(200)),
            hardware_counters: true,
        }
    }
}

/// What a recording amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The profile.
    pub path: PathBuf,
    /// Events of the program that are in the profile.
    pub recorded: u64,
    /// Events of the program that are not: they found a full ring, or too many open spans.
    pub dropped: u64,
}

/// A recording at work. It ends with [`Recorder::finish`], or when this is dropped.
pub struct Recorder {
    handle: Handle,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<Summary, Error>>>,
}

impl Recorder {
    /// Starts a recording.
    pub fn start(options: Options) -> Result<Self, Error> {
        let disk = Disk::new(Writer::create(&options.path, &options.name)?, options.segment_rows);
        Self::start_with(options, Box::new(disk))
    }

    fn start_with(options: Options, sink: Box<dyn Sink>) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(&options));
        let path = options.path.clone();
        let work = {
            let shared = shared.clone();
            move || writer::run(&options, &shared, sink)
        };
        let thread = std::thread::Builder::new().name("trace-writer".into()).spawn(work).map_err(Error::io(&path))?;
        Ok(Self { handle: Handle::new(shared.clone()), shared, thread: Some(thread) })
    }

    /// A handle for the threads of the program.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends the recording and writes what is left. Spans that are still open are not part of it. Where the disk stopped the
    /// recording before, this is where it is told.
    pub fn finish(mut self) -> Result<Summary, Error> {
        self.stop().unwrap_or_else(|| unreachable!("the thread is joined once, and `finish` takes the recorder"))
    }

    fn stop(&mut self) -> Option<Result<Summary, Error>> {
        let thread = self.thread.take()?;
        self.shared.stop.store(true, Ordering::Release);
        thread.thread().unpark();
        Some(match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }
}

impl std::ops::Deref for Recorder {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Who wants to know how it ended calls `finish`.
        if !std::thread::panicking() {
            let _ = self.stop();
        }
    }
}
