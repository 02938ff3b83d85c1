//! One model as it is served: by the engine, by Python handlers, or by handlers around the engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use model::ModelError;
use model::files::{FileError, ModelDir};

use crate::engine::{Engine, LoadError};
use crate::failure::{Failure, Kind};
use crate::http::answer_type;
use crate::memory;
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
        cause: Box<HandlerError>,
    },
    /// The model is for another task.
    #[error("{model} is for {found}, but HF_TASK (--task) asks for {wanted}")]
    Task {
        /// The model.
        model: String,
        /// Its task.
        found: &'static str,
        /// What was asked for, which may be no task that is served here.
        wanted: String,
    },
    /// The built-in models do not write what they should answer by default.
    #[error(
        "{model} cannot answer in `{wanted}` (--default-accept, SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT): built-in models \
         answer in application/json, application/jsonlines and text/csv"
    )]
    Answer {
        /// The model.
        model: String,
        /// What was asked for.
        wanted: String,
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
            Self::Handler { cause, .. } => !matches!(**cause, HandlerError::Process { .. } | HandlerError::Stopped),
            Self::Load(_) | Self::Task { .. } | Self::Answer { .. } => true,
        }
    }
}

/// A model that was found and unpacked; nothing of it is in memory yet.
pub struct Found {
    spec: ModelSpec,
    dir: ModelDir,
    /// The script with the model's own handlers, below its directory.
    script: Option<PathBuf>,
    bytes: u64,
    started: Instant,
}

impl Found {
    /// Finds a model's files, and unpacks them where they are an archive.
    ///
    /// # Errors
    /// See [`ServeError`]; messages are complete in themselves.
    pub async fn open(spec: &ModelSpec, options: &Options) -> Result<Self, ServeError> {
        let started = Instant::now();
        let (spec, script) = (spec.clone(), Path::new("code").join(&options.python.program));
        let (dtype, workers) = (options.engine.dtype, options.python.workers);
        let source = spec.source.clone();
        let find = move || {
            let dir = ModelDir::open_with_code(&spec.source, &script)?;
            let script = Some(script).filter(|script| dir.path().join(script).is_file());
            let bytes = match script {
                Some(_) => memory::of_handler(dir.path(), workers),
                None => memory::of_engine(dir.path(), dtype)?,
            };
            Ok(Self { spec, dir, script, bytes, started })
        };
        blocking(&source, find).await?
    }

    /// About as many bytes as it will take in memory: the weights in the type they are run in and 30 % more; for a model with
    /// Python handlers, all of its files in each worker.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Loads it: starts its handlers, warms it up.
    ///
    /// # Errors
    /// See [`ServeError`]; messages are complete in themselves.
    pub async fn load(self, options: &Options, metrics: &Arc<Metrics>) -> Result<Served, ServeError> {
        let Self { spec: ModelSpec { name, source }, dir, script, started, .. } = self;
        let handler = match script {
            Some(_) => Some(start_handler(&dir, &name, &source, options).await?),
            None => None,
        };
        let predicts = handler.as_ref().is_some_and(|handler| handler.functions().predicts());
        let (engine, dir) = if predicts {
            (None, Some(dir))
        } else {
            let (engine_options, observer) = (options.engine.clone(), metrics.observer(&name));
            let loaded = blocking(&source, move || Engine::load(dir, &engine_options, observer)).await??;
            (Some(loaded), None)
        };
        let served = Served { name, source, loaded: SystemTime::now(), engine, handler, _dir: dir };
        served.check(options)?;
        served.log(started.elapsed().as_secs_f64());
        Ok(served)
    }
}

impl Served {
    /// Fails unless the engine, if there is one, does what the server was started for.
    fn check(&self, options: &Options) -> Result<(), ServeError> {
        let Some(engine) = &self.engine else { return Ok(()) };
        let (model, found) = (self.source.clone(), Task::of(engine.config()));
        if let Some(wanted) = &options.task
            && wanted.parse() != Ok(found)
        {
            return Err(ServeError::Task { model, found: found.name(), wanted: wanted.clone() });
        }
        match &options.default_accept {
            Some(wanted) if self.handler.is_none() && answer_type(wanted).is_none() => {
                Err(ServeError::Answer { model, wanted: wanted.clone() })
            }
            _ => Ok(()),
        }
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

#[cfg(test)]
impl Served {
    /// A model that answers nothing.
    pub fn empty(spec: &ModelSpec) -> Self {
        let (name, source) = (spec.name.clone(), spec.source.clone());
        Self { name, source, loaded: SystemTime::now(), engine: None, handler: None, _dir: None }
    }
}

async fn start_handler(dir: &ModelDir, name: &str, source: &str, options: &Options) -> Result<Handler, ServeError> {
    let python = &options.python;
    let own = HandlerOptions::new(dir.path(), &python.program, &python.environments);
    let handler = HandlerOptions {
        name: name.into(),
        python: python.python.clone(),
        workers: python.workers,
        start_timeout: python.start_timeout,
        memory_limit: python.memory,
        queue: options.engine.max_queue,
        request_limit: options.limits.body_bytes as u64,
        ..own
    };
    let started = Handler::start(handler).await;
    started.map_err(|cause| ServeError::Handler { model: source.into(), cause: Box::new(cause) })
}

async fn blocking<T: Send + 'static>(source: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ServeError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ServeError::Interrupted(source.into()))
}
