//! One model as it is served: by the engine, by Python handlers, or by handlers around the engine.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use model::ModelError;
use model::files::{FileError, ModelDir};

use crate::engine::{Engine, LoadError};
use crate::failure::{Failure, Kind};
use crate::metrics::Metrics;
use crate::options::{ModelSpec, Options};
use crate::python::{Handler, HandlerError, HandlerOptions};
use crate::task::Task;

/// A loaded model.
pub struct Served {
    /// What requests call it.
    pub name: String,
    /// Where it came from, as it was asked for.
    pub source: String,
    /// When it was loaded.
    pub loaded: SystemTime,
    engine: Option<Engine>,
    handler: Option<Handler>,
    /// Holds an unpacked archive's files for the handler.
    _dir: Option<ModelDir>,
}

/// Why a model is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The files.
    #[error(transparent)]
    File(#[from] FileError),
    /// The engine.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The Python handlers.
    #[error("{model}: {cause}")]
    Handler {
        /// The model.
        model: String,
        /// What went wrong.
        cause: HandlerError,
    },
    /// The model is for another task.
    #[error("{model} is for {found}, but HF_TASK (--task) asks for {wanted}")]
    Task {
        /// The model.
        model: String,
        /// Its task.
        found: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// The thread that loaded it is gone.
    #[error("loading {0} was interrupted")]
    Interrupted(String),
}

impl ServeError {
    /// Whether what the user named is at fault, not the machine.
    pub fn is_input(&self) -> bool {
        match self {
            Self::File(error) | Self::Load(LoadError::File(error) | LoadError::Model(ModelError::File(error))) => {
                error.is_input()
            }
            Self::Load(LoadError::Thread(_)) | Self::Interrupted(_) => false,
            Self::Load(_) | Self::Handler { .. } | Self::Task { .. } => true,
        }
    }
}

impl Served {
    /// Loads a model: unpacks it, starts its handlers, warms it up.
    ///
    /// # Errors
    /// See [`ServeError`]; messages are complete in themselves.
    pub async fn load(spec: &ModelSpec, options: &Options, metrics: &Arc<Metrics>) -> Result<Self, ServeError> {
        let started = std::time::Instant::now();
        let script = Path::new("code").join(&options.python.program);
        let source = spec.source.clone();
        let opened = blocking(&source, {
            let (source, script) = (source.clone(), script.clone());
            move || ModelDir::open_with_code(&source, &script)
        });
        let dir = opened.await??;
        let handler = match dir.path().join(&script).is_file() {
            true => Some(start_handler(&dir, &source, options).await?),
            false => None,
        };
        let predicts = handler.as_ref().is_some_and(|handler| handler.functions().predicts());
        let (engine, dir) = if predicts {
            (None, Some(dir))
        } else {
            let (engine_options, observer) = (options.engine.clone(), metrics.observer(&spec.name));
            let loaded = blocking(&source, move || Engine::load(dir, &engine_options, observer)).await??;
            (Some(loaded), None)
        };
        if let (Some(engine), Some(wanted)) = (&engine, options.task) {
            let found = Task::of(engine.config());
            if found != wanted {
                return Err(ServeError::Task { model: source, found: found.name(), wanted: wanted.name() });
            }
        }
        let served = Self { name: spec.name.clone(), source, loaded: SystemTime::now(), engine, handler, _dir: dir };
        served.log(started.elapsed().as_secs_f64());
        Ok(served)
    }

    fn log(&self, seconds: f64) {
        let (name, source) = (&self.name, &self.source);
        if let Some(engine) = &self.engine {
            let config = engine.config();
            tracing::info!(
                model = name, source, task = Task::of(config).name(), dtype = %engine.dtype(),
                max_tokens = config.encoder.max_tokens(), seconds, "model loaded"
            );
        }
        if let Some(handler) = &self.handler {
            tracing::info!(model = name, source, functions = %handler.functions(), seconds, "Python handler loaded");
        }
    }

    /// The engine.
    ///
    /// # Errors
    /// [`Kind::WrongTask`] when Python handlers answer instead.
    pub fn engine(&self) -> Result<&Engine, Failure> {
        self.engine.as_ref().ok_or_else(|| {
            let text = format!("the model `{}` is answered by its own Python handler: use /invocations", self.name);
            Failure::new(Kind::WrongTask, text)
        })
    }

    /// The Python handlers, if there are any.
    pub fn handler(&self) -> Option<&Handler> {
        self.handler.as_ref()
    }

    /// The model's task, by the hub's name.
    pub fn task(&self) -> &'static str {
        self.engine.as_ref().map_or("custom", |engine| Task::of(engine.config()).name())
    }
}

async fn start_handler(dir: &ModelDir, source: &str, options: &Options) -> Result<Handler, ServeError> {
    let python = &options.python;
    let own = HandlerOptions::new(dir.path(), &python.program, &python.environments);
    let handler = HandlerOptions {
        python: python.python.clone(),
        workers: python.workers,
        start_timeout: python.start_timeout,
        memory_limit: python.memory,
        queue: options.engine.max_queue,
        request_limit: options.limits.body_bytes as u64,
        ..own
    };
    Handler::start(handler).await.map_err(|cause| ServeError::Handler { model: source.into(), cause })
}

async fn blocking<T: Send + 'static>(source: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ServeError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ServeError::Interrupted(source.into()))
}
