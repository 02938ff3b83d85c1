//! A loaded encoder that answers texts: tokenize, queue, run, hand back one result or failure for each input.

mod runner;

use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Instant;

use model::files::ModelDir;
use model::tokenizer::{Encoding, Options as TokenizerOptions, Tokenizer};
use model::{InferenceDtype, LoadMode, Model, ModelConfig};
use tensor::CpuKernels;
use tokio::sync::Semaphore;

use crate::failure::{Failure, Kind};
use crate::input::{Input, InputOptions};
use crate::scheduler::{Done, Limits, Observer, Pending, Refusal, Runner, Scheduler};
pub use runner::{EncoderRunner, Recipe, Rows, Work};

/// Texts of a request that are larger than this together are tokenized off the threads that move bytes.
const TOKENIZED_INLINE: usize = 8 << 10;
/// Tokens of the sequences that a new engine runs before it answers.
const WARM_UP_TOKENS: [usize; 2] = [16, 128];

/// How an engine works.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Arithmetic and storage.
    pub dtype: InferenceDtype,
    /// Threads of all teams together.
    pub threads: usize,
    /// Teams, each with a batch of its own in flight; several are pinned to cores of their own.
    pub teams: usize,
    /// Tokens of a batch.
    pub max_batch_tokens: usize,
    /// Inputs that may wait.
    pub max_queue: usize,
    /// Whether texts that are too long are cut where a request does not say.
    pub truncate: bool,
}

/// Why an engine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// Not a model at all.
    #[error(transparent)]
    File(#[from] model::files::FileError),
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The model ran, and failed.
    #[error("the model failed on its first run; the log says how")]
    WarmUp,
}

/// What a request to an engine cost, for metrics and traces.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// When tokenizing began.
    pub began: Instant,
    /// When it was queued.
    pub queued: Instant,
    /// When the first of its batches started.
    pub started: Instant,
    /// When the last of its batches ended.
    pub finished: Instant,
    /// Tokens of all inputs.
    pub tokens: usize,
}

/// The answer to one input.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The input as the model read it.
    pub encoding: Encoding,
    /// The model's output.
    pub rows: Rows,
}

/// The answers to a request, in the order of its inputs.
pub struct Answers {
    /// One for each input.
    pub each: Vec<Result<Answer, Failure>>,
    /// Absent when no input got as far as the queue.
    pub timing: Option<Timing>,
}

/// A loaded encoder with its scheduler. Dropping it lets queued work finish.
pub struct Engine {
    scheduler: Scheduler<EncoderRunner>,
    model: Arc<Model>,
    /// The tokenizer that lets control tokens through; made when first asked for.
    permissive: OnceLock<Result<Tokenizer, String>>,
    recipe: Recipe,
    truncate: bool,
    dtype: InferenceDtype,
    tokenizing: Semaphore,
    max_queue: usize,
    /// The files, which a tarball's temporary directory holds.
    dir: ModelDir,
}

impl Engine {
    /// Loads a model and warms it up; takes as long as that takes.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(dir: ModelDir, options: &EngineOptions, observer: Arc<dyn Observer>) -> Result<Self, LoadError> {
        let teams = options.teams.clamp(1, options.threads.max(1));
        // One team keeps the kernels that packed the weights; several are made on their runners' threads, pinned.
        let kernels = CpuKernels::new(if teams == 1 { options.threads } else { 1 });
        let (model, _) = Model::load(&dir, &LoadMode::Inference(options.dtype), &kernels)?;
        let model = Arc::new(model);
        let recipe = Recipe { pooling: model.encoder.pooling, normalize: model.encoder.normalize };
        let mut kernels = (teams == 1).then_some(kernels);
        let activations = options.dtype.activations();
        let (warm, warmed) = mpsc::channel();
        let makers = tensor::split_cores(options.threads, teams).into_iter().map(|cores| {
            let (model, kernels, warm) = (model.clone(), kernels.take(), warm.clone());
            move || {
                let kernels = kernels.unwrap_or_else(|| {
                    tensor::pin_to_cores(&cores);
                    CpuKernels::new(cores.len())
                });
                let mut runner = EncoderRunner::new(model, kernels, activations);
                warm_up(&mut runner, recipe);
                // Whoever loads it waits for this.
                let _ = warm.send(());
                runner
            }
        });
        let limits = Limits { queue: options.max_queue, batch_cost: options.max_batch_tokens, batch_size: MAX_BATCH };
        let scheduler = Scheduler::start(limits, observer, makers.collect()).map_err(LoadError::Thread)?;
        drop(warm);
        if warmed.iter().count() < teams {
            return Err(LoadError::WarmUp);
        }
        Ok(Self {
            scheduler,
            model,
            permissive: OnceLock::new(),
            recipe,
            truncate: options.truncate,
            dtype: options.dtype,
            tokenizing: Semaphore::new(options.threads.max(1)),
            max_queue: options.max_queue,
            dir,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        self.model.encoder.config()
    }

    /// The directory the model was loaded from.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Arithmetic and storage.
    pub fn dtype(&self) -> InferenceDtype {
        self.dtype
    }

    /// Whether texts that are too long are cut where a request does not say.
    pub fn truncates(&self) -> bool {
        self.truncate
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.model.tokenizer
    }

    /// How embeddings are made where a request does not say.
    pub fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// Answers inputs; those that failed before keep their failure.
    ///
    /// # Errors
    /// What concerns all of them: a full queue, a deadline that passed, a crash.
    pub async fn answer(
        &self,
        inputs: Vec<Result<Input, Failure>>,
        options: &InputOptions,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        let began = Instant::now();
        let encoded = self.encode(&inputs, options, deadline).await?;
        let tokens = encoded.iter().flatten().map(|encoding| encoding.ids.len()).sum();
        let recipe = Recipe {
            pooling: options.pooling.unwrap_or(self.recipe.pooling),
            normalize: options.normalize.unwrap_or(self.recipe.normalize),
        };
        let work = |encoding: &Encoding| {
            let second = encoding.type_ids.iter().position(|&id| id == 1);
            let first_segment = second.unwrap_or(encoding.ids.len());
            (Work { ids: encoding.ids.clone(), first_segment, recipe }, encoding.ids.len())
        };
        let work: Vec<_> = encoded.iter().flatten().map(work).collect();
        let pending = self.scheduler.submit(work, deadline).map_err(|refusal| self.refused(refusal))?;
        let outcomes = tokio::time::timeout_at(deadline.into(), collect(pending)).await;
        let outcomes = outcomes.map_err(|_| self.refused(Refusal::Deadline))?.map_err(|r| self.refused(r))?;
        let timing = outcomes.first().map(|first| {
            let later = outcomes.iter().skip(1);
            let started = later.clone().map(|done| done.started).fold(first.started, Instant::min);
            let finished = later.map(|done| done.finished).fold(first.finished, Instant::max);
            Timing { began, queued: first.queued, started, finished, tokens }
        });
        let mut outcomes = outcomes.into_iter();
        let answer = |encoded: Result<Encoding, Failure>| {
            let encoding = encoded?;
            let Some(Done { outcome: rows, .. }) = outcomes.next() else { return Err(lost()) };
            if rows.is_finite() { Ok(Answer { encoding, rows }) } else { Err(not_finite()) }
        };
        Ok(Answers { each: encoded.into_iter().map(answer).collect(), timing })
    }

    /// Token ids of inputs, without running anything.
    ///
    /// # Errors
    /// When the deadline passes before all are done.
    pub async fn encode(
        &self,
        inputs: &[Result<Input, Failure>],
        options: &InputOptions,
        deadline: Instant,
    ) -> Result<Vec<Result<Encoding, Failure>>, Failure> {
        let one = |input: &Result<Input, Failure>| {
            if Instant::now() >= deadline {
                return Err(self.refused(Refusal::Deadline));
            }
            Ok(input.as_ref().map_err(Clone::clone).and_then(|input| self.tokens(input, options)))
        };
        let bytes: usize = inputs.iter().flatten().map(Input::bytes).sum();
        if bytes <= TOKENIZED_INLINE && !options.allow_special_tokens {
            return inputs.iter().map(one).collect();
        }
        let permit = tokio::time::timeout_at(deadline.into(), self.tokenizing.acquire()).await;
        let _permit = permit.map_err(|_| self.refused(Refusal::Deadline))?.map_err(|_| lost())?;
        tokio::task::block_in_place(|| inputs.iter().map(one).collect())
    }

    fn tokens(&self, input: &Input, options: &InputOptions) -> Result<Encoding, Failure> {
        let most = self.config().encoder.max_tokens();
        let max_tokens = match options.max_tokens {
            Some(asked) if asked > most => {
                let problem = format!("is {asked}, but this model takes at most {most} tokens");
                return Err(Failure::invalid("parameters.max_length", problem));
            }
            asked => asked.unwrap_or(most),
        };
        let tokenizer = if options.allow_special_tokens { self.permissive()? } else { self.tokenizer() };
        let encoding = tokenizer.encode_cut(&input.text, input.pair.as_deref(), max_tokens, options.cut);
        let encoding = encoding.map_err(|error| Failure::new(Kind::Invalid, error.to_string()))?;
        if encoding.truncated && !options.truncate.unwrap_or(self.truncate) {
            let text = format!(
                "the text has more than {max_tokens} tokens, the most that {}; send `truncation: true` in `parameters` \
                 (`truncate: true` for /embed and /predict) to have it cut, or start the server with --auto-truncate",
                if max_tokens == most { "this model takes" } else { "was asked for" }
            );
            return Err(Failure::new(Kind::TooManyTokens, text));
        }
        if encoding.ids.is_empty() {
            let text = "the text has no tokens, and this model's tokenizer adds none of its own";
            return Err(Failure::new(Kind::Invalid, text));
        }
        Ok(encoding)
    }

    fn permissive(&self) -> Result<&Tokenizer, Failure> {
        let open = || {
            let options = TokenizerOptions { allow_special_tokens: true };
            Tokenizer::open_with(self.dir.path(), &options).map_err(|error| error.to_string())
        };
        self.permissive
            .get_or_init(open)
            .as_ref()
            .map_err(|error| Failure::new(Kind::Internal, format!("the tokenizer cannot be opened again: {error}")))
    }

    fn refused(&self, refusal: Refusal) -> Failure {
        match refusal {
            Refusal::Full { queued } => {
                let text = format!(
                    "{queued} inputs wait already and at most {} may (--max-queue); try again later or send fewer",
                    self.max_queue
                );
                Failure::new(Kind::Overloaded, text).retry_after(1)
            }
            Refusal::Deadline => {
                Failure::new(Kind::Deadline, "the answer was not ready within the request's deadline (--timeout)")
            }
            Refusal::Crashed(text) => Failure::new(Kind::Internal, format!("the model crashed on this batch: {text}")),
            Refusal::Closed => Failure::new(Kind::Unavailable, "the model is being unloaded").retry_after(1),
        }
    }
}

/// Touches weights and memory, so that the first request does not pay for it.
fn warm_up(runner: &mut EncoderRunner, recipe: Recipe) {
    for tokens in WARM_UP_TOKENS {
        let ids = vec![0; tokens.min(runner.max_tokens())];
        let first_segment = ids.len();
        runner.run(&[Work { ids, first_segment, recipe }]);
    }
}

/// Inputs of a batch, however short they are.
const MAX_BATCH: usize = 4096;

/// All outcomes, or the first refusal.
async fn collect(pending: Vec<Pending<Rows>>) -> Result<Vec<Done<Rows>>, Refusal> {
    let mut outcomes = Vec::with_capacity(pending.len());
    for pending in pending {
        outcomes.push(pending.await.unwrap_or(Err(Refusal::Closed))?);
    }
    Ok(outcomes)
}

fn not_finite() -> Failure {
    let text = "the model's output for this input is not finite (NaN or infinity): its weights are damaged, or too \
                large for this --dtype";
    Failure::new(Kind::NotFinite, text)
}

fn lost() -> Failure {
    Failure::new(Kind::Internal, "the scheduler lost this input")
}
