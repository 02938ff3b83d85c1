//! A training job from its first file to its last.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model::files::ModelDir;
use model::{LoadMode, Loss, Model};
use serde_json::json;
use tensor::{CpuKernels, DType, Kernels, PoolStats};
use trace::recorder::Lane;

use crate::batching::prepare;
use crate::checkpoint::{Best, Checkpoints, RunState, damaged_checkpoint, read_state, read_tensors};
use crate::data::Loaded;
use crate::error::TrainError;
use crate::evaluate::evaluate;
use crate::job::{Job, Precision};
use crate::log::MetricsLog;
use crate::metrics::{Metric, Report};
use crate::outcome::{Outcome, Totals};
use crate::progress::{Event, Observer, StepRecord};
use crate::record::{NAMES, Profiling, RecordingKernels, Window, directory_bytes};
use crate::sampler::Sampler;
use crate::schedule::LrSchedule;
use crate::setup::{self, Setup};
use crate::step::{Updater, refuse_damaged};

const RUN_JSON: &str = "run.json";

/// What a run records of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileRequest {
    /// All updates, and what comes between them.
    Whole,
    /// Some updates, and what comes between and after them.
    Updates(Window),
}

/// Runs a job. With `resume` it goes on from the newest checkpoint of the run directory. When `stop` becomes true, the
/// update at work is finished and a checkpoint written. What `profile` asks for is recorded in the run directory.
pub fn run(
    job: &Job,
    resume: bool,
    profile: Option<ProfileRequest>,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Outcome, TrainError> {
    let kernels = CpuKernels::new(job.threads.unwrap_or_else(tensor::physical_cores));
    let mut run = Run::begin(job, resume, profile, &kernels, observer)?;
    let done = run.train(stop, observer).and_then(|()| run.finish(observer));
    done.map_err(|error| {
        let error = run.with_checkpoint(error);
        // The run's own error is what the user must see, whether or not this file can still be written.
        let _ = run.write_run_json(&json!({"failed": error.to_string()}));
        run.profiling.abandon();
        error
    })
}

struct Run<'a> {
    job: &'a Job,
    device: &'a CpuKernels,
    kernels: RecordingKernels<'a>,
    profiling: Profiling,
    setup: Setup,
    updater: Updater,
    sampler: Sampler,
    schedule: LrSchedule,
    state: RunState,
    metric: Metric,
    metrics: MetricsLog,
    last_evaluation: Option<Report>,
    /// Updates made, and those before the last evaluation, in the newest checkpoint.
    saved: Option<(u64, Option<u64>)>,
    interrupted: Option<PathBuf>,
    totals: Totals,
}

impl<'a> Run<'a> {
    fn begin(
        job: &'a Job,
        resume: bool,
        profile: Option<ProfileRequest>,
        kernels: &'a CpuKernels,
        observer: &mut dyn Observer,
    ) -> Result<Self, TrainError> {
        let checkpoints = Checkpoints::of(&job.out);
        let newest = checkpoints.latest();
        // What a run left that never saved anything is not worth keeping.
        if !resume && (newest.is_some() || job.out.join("model/model.safetensors").exists()) {
            return Err(TrainError::Occupied { path: job.out.clone(), resumable: newest.is_some() });
        }
        let mut setup = setup::load(job, kernels)?;
        let identity = setup::identity(job, &setup);
        let mut updater = setup.updater(job, kernels)?;
        setup.notices.drain(..).for_each(|notice| observer.observe(Event::Notice(notice)));
        let mut sampler = Sampler::new(setup.data.train.lengths(), job.batch.limit(), job.batch.shuffle, job.seed);
        let mut state = RunState::new(identity, kernels.name());
        checkpoints.remove_leftovers(&job.out);
        if resume {
            let dir = newest.ok_or_else(|| {
                let problem = "holds no whole checkpoint; start the run without --resume";
                TrainError::Resume(format!("`{}` {problem}", job.out.display()))
            })?;
            let found = read_state(&dir)?;
            setup::refuse_other_run(&found.identity, &state.identity)?;
            let before = std::mem::replace(&mut state, found).kernels;
            if state.kernels != before {
                let text =
                    format!("begun on {}, going on with {before}: the results will differ in rounding", state.kernels);
                observer.observe(Event::Notice(text));
                state.kernels = before;
            }
            setup.model.weights = read_tensors(&dir, &state, &setup.model.encoder, &mut updater.optimizer, kernels)
                .map_err(|cause| damaged_checkpoint(&dir, &cause))?;
            sampler.resume(state.sampler);
        }
        if job.precision == Precision::Bf16 {
            setup.model.weights.keep_working_copies(kernels, DType::BF16);
        }
        let total_steps = job
            .schedule
            .steps
            .unwrap_or_else(|| sampler.updates_in(job.schedule.epochs.unwrap_or(1.0), job.batch.accumulate));
        let schedule = LrSchedule::of_job(&job.schedule, total_steps);
        refuse_endless_warmup(job, total_steps)?;
        if let Some(ProfileRequest::Updates(window)) = profile {
            window.refuse_misfit(state.step, total_steps)?;
        }
        std::fs::create_dir_all(&job.out).map_err(|cause| TrainError::io("create", &job.out, cause))?;
        let metrics = MetricsLog::open(&job.out, &state)?;
        let profiling = match profile {
            None => Profiling::off(),
            Some(ProfileRequest::Whole) => Profiling::in_directory(&job.out, None)?,
            Some(ProfileRequest::Updates(window)) => Profiling::in_directory(&job.out, Some(window))?,
        };
        observer.observe(Event::Started {
            device: format!("{} on {} threads", kernels.name(), kernels.threads()),
            parameters: (setup.model.weights.count(), setup.trainable(&updater.gradients)),
            train: &setup.data.train_counts,
            validation: setup.data.validation_counts.as_ref(),
            total_steps,
            resumed_at: resume.then_some(state.step),
        });
        let run = Self {
            job,
            device: kernels,
            kernels: RecordingKernels::new(kernels, profiling.handle()),
            profiling,
            updater,
            sampler,
            schedule,
            saved: resume.then_some((state.step, state.evaluated)),
            state,
            metric: job.evaluate.metric.unwrap_or_else(|| Metric::default_for(job.task)),
            metrics,
            last_evaluation: None,
            interrupted: None,
            totals: Totals::default(),
            setup,
        };
        if !run.is_over() {
            run.write_run_json(&json!(null))?;
        }
        Ok(run)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.state.elapsed_seconds)
    }

    fn train(&mut self, stop: &AtomicBool, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let mut saved_at = Instant::now();
        while !self.is_over() {
            self.record_or_not(observer);
            let record = self.profiling.handle().here(|lane| self.update(lane))?;
            observer.observe(Event::Step(&record));
            if self.evaluation_is_due(&record) {
                self.evaluate(observer)?;
            }
            let stopped = stop.load(Ordering::Relaxed);
            if stopped || self.checkpoint_is_due(saved_at.elapsed()) {
                let path = self.save_checkpoint(observer)?;
                saved_at = Instant::now();
                if stopped {
                    self.interrupted = Some(path);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.schedule.finished(self.state.step, self.elapsed()) || self.patience_is_over()
    }

    /// Starts and ends the profile where its window does. What goes wrong with it is told, and training goes on.
    fn record_or_not(&mut self, observer: &mut dyn Observer) {
        match self.profiling.before_update(self.state.step + 1, self.device) {
            Ok(false) => {}
            Ok(true) => self.kernels = RecordingKernels::new(self.device, self.profiling.handle()),
            Err(error) => {
                self.kernels = RecordingKernels::new(self.device, self.profiling.handle());
                observer.observe(Event::Notice(format!("the profile is not complete: {error}")));
            }
        }
    }

    fn end_profile(&mut self, observer: &mut dyn Observer) -> Option<PathBuf> {
        if self.profiling.is_waiting() {
            let text = "the run ended before the first update that --profile names: nothing was recorded";
            observer.observe(Event::Notice(text.into()));
        }
        if let Err(error) = self.profiling.finish() {
            observer.observe(Event::Notice(format!("the profile is not complete: {error}")));
        }
        self.profiling.close()
    }

    fn update(&mut self, lane: &Lane) -> Result<StepRecord, TrainError> {
        let begun = Instant::now();
        let step = lane.step(NAMES.step, self.state.step + 1);
        let loading = lane.annotate(NAMES.data_loading);
        let lr = self.job.optimizer.lr * self.schedule.factor(self.state.step, self.elapsed());
        let batches = self.sampler.next_update(self.job.batch.accumulate);
        let (mut samples, mut prepared) = (0, Vec::with_capacity(batches.len()));
        let config = self.setup.model.encoder.config();
        for batch in &batches {
            let (data, outputs) = (&self.setup.data.train, config.outputs());
            prepared.push(prepare(data, &batch.examples, samples, self.job.task, outputs, &config.encoder));
            samples += batch.examples.len() as u64;
        }
        let tokens: usize = prepared.iter().map(|p| p.batch.tokens()).sum();
        loading.end_with(&[samples as i64, tokens as i64]);
        let update = self.updater.update(&mut self.setup.model, &prepared, lr, &self.kernels, lane)?;
        step.end_with(&[samples as i64, tokens as i64, prepared.len() as i64]);
        self.profiling.mark_memory(lane, self.kernels.pool());
        let seconds = begun.elapsed().as_secs_f64();
        self.state.step += 1;
        self.state.sampler = self.sampler.state();
        self.state.elapsed_seconds += seconds;
        self.totals.add(samples as usize, tokens, seconds, update.loss, update.saved_bytes);
        let record = StepRecord {
            step: self.state.step,
            epoch: self.epoch(),
            loss: update.loss,
            lr,
            gradient_norm: update.gradient_norm,
            samples: samples as usize,
            tokens,
            seconds,
            progress: self.schedule.progress(self.state.step, self.elapsed()),
        };
        self.metrics.write(&json!({"train": &record}))?;
        Ok(record)
    }

    /// Passes over the training data so far.
    fn epoch(&self) -> f64 {
        let state = self.state.sampler;
        state.epoch as f64 + state.position as f64 / self.sampler.examples().max(1) as f64
    }

    fn evaluation_is_due(&self, record: &StepRecord) -> bool {
        if self.setup.data.validation.is_none() {
            return false;
        }
        match (self.job.evaluate.every_steps, self.job.evaluate.every_epochs) {
            (Some(every), _) => record.step.is_multiple_of(every),
            (None, every) => {
                let every = every.unwrap_or(1.0);
                let before = record.epoch - record.samples as f64 / self.sampler.examples().max(1) as f64;
                // Half an example's share absorbs the rounding of the division.
                let slack = 0.5 / self.sampler.examples().max(1) as f64;
                ((record.epoch + slack) / every).floor() > ((before + slack) / every).floor()
            }
        }
    }

    fn checkpoint_is_due(&self, since_last: Duration) -> bool {
        let table = &self.job.checkpoint;
        let by_steps = table.every_steps.is_some_and(|every| self.state.step.is_multiple_of(every));
        by_steps || table.every_minutes.is_some_and(|minutes| since_last.as_secs_f64() >= minutes * 60.0)
    }

    fn patience_is_over(&self) -> bool {
        let patience = self.job.evaluate.early_stopping_patience;
        patience.is_some_and(|patience| self.state.evaluations_without_gain >= patience)
    }

    /// Evaluates the validation data and keeps the model if it is the best so far.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(validation) = &self.setup.data.validation else { return Ok(()) };
        refuse_damaged(&self.setup.model.weights, self.state.step, &self.kernels)?;
        let (model, loss) = (&self.setup.model, &Loss::default());
        let report = self.profiling.handle().here(|lane| {
            let evaluation = lane.annotate(NAMES.evaluation);
            let report = evaluate(model, validation, self.job.task, loss, &self.kernels, self.updater.dtype);
            evaluation.end_with(&[validation.len() as i64]);
            report
        });
        let step = self.state.step;
        let value = report.value(self.metric).filter(|value| value.is_finite());
        let improves = match (value, self.state.best) {
            (Some(new), Some(best)) => self.metric.improves(new, best.value),
            (_, best) => best.is_none(),
        };
        observer.observe(Event::Evaluated { step, report: &report, metric: self.metric, best: improves });
        self.metrics.write(&json!({"step": step, "validation": &report, "best": improves}))?;
        if improves {
            self.state.best = value.map(|value| Best { step, value });
            self.state.evaluations_without_gain = 0;
            self.save_model()?;
        } else {
            self.state.evaluations_without_gain += 1;
        }
        self.state.evaluated = Some(step);
        self.last_evaluation = Some(report);
        if self.patience_is_over() {
            let evaluations = self.state.evaluations_without_gain;
            let text = format!("{} was no better in {evaluations} evaluations in a row", self.metric.name());
            observer.observe(Event::StoppedEarly(text));
        }
        Ok(())
    }

    fn save_checkpoint(&mut self, observer: &mut dyn Observer) -> Result<PathBuf, TrainError> {
        let Setup { model, .. } = &self.setup;
        refuse_damaged(&model.weights, self.state.step, &self.kernels)?;
        self.metrics.sync()?;
        let checkpoints = Checkpoints::of(&self.job.out);
        let keep = self.job.checkpoint.keep;
        let path = self.profiling.handle().here(|lane| {
            let writing = lane.annotate(NAMES.checkpoint);
            let path = checkpoints.save(&self.state, model, &self.updater.optimizer, keep)?;
            if lane.is_on() {
                writing.end_with(&[directory_bytes(&path)]);
            }
            Ok::<PathBuf, TrainError>(path)
        })?;
        self.saved = Some((self.state.step, self.state.evaluated));
        observer.observe(Event::Saved(path.clone()));
        Ok(path)
    }

    fn save_model(&self) -> Result<(), TrainError> {
        self.profiling.handle().here(|lane| {
            let writing = lane.annotate(NAMES.save_model);
            self.setup.model.save(&self.model_dir())?;
            if lane.is_on() {
                writing.end_with(&[directory_bytes(&self.model_dir())]);
            }
            Ok(())
        })
    }

    fn finish(&mut self, observer: &mut dyn Observer) -> Result<Outcome, TrainError> {
        if self.interrupted.is_none() {
            if self.setup.data.validation.is_none() {
                refuse_damaged(&self.setup.model.weights, self.state.step, &self.kernels)?;
                self.save_model()?;
            } else if self.state.evaluated != Some(self.state.step) {
                self.evaluate(observer)?;
            }
            if self.saved != Some((self.state.step, self.state.evaluated)) {
                self.save_checkpoint(observer)?;
            }
        }
        let eval = if self.interrupted.is_none() { self.final_report()? } else { None };
        let profile = self.end_profile(observer);
        let outcome = Outcome {
            run_dir: self.job.out.clone(),
            profile,
            model_dir: Some(self.model_dir()).filter(|dir| dir.exists()),
            steps: self.state.step,
            train_loss: self.totals.train_loss(),
            samples_per_s: self.totals.samples as f64 / self.totals.seconds.max(1e-9),
            tokens_per_s: self.totals.tokens as f64 / self.totals.seconds.max(1e-9),
            peak_rss_bytes: setup::peak_rss_bytes(),
            eval,
            interrupted: self.interrupted.clone(),
        };
        // A finished run that is resumed has nothing to add to what it said of itself.
        if self.totals.samples > 0 || !self.job.out.join(RUN_JSON).is_file() {
            self.write_run_json(&json!(outcome))?;
        }
        Ok(outcome)
    }

    /// Metrics of the model that the run leaves, in f32 as `eval` computes them: on the test data where there are any.
    fn final_report(&mut self) -> Result<Option<Report>, TrainError> {
        let data = &self.setup.data;
        let Some(part) = data.test.as_ref().or(data.validation.as_ref()) else { return Ok(None) };
        let last_is_best = self.state.best.is_none_or(|best| best.step == self.state.step);
        let is_exact = last_is_best && self.updater.dtype == DType::F32;
        if let (None, true, Some(report)) = (&data.test, is_exact, &self.last_evaluation) {
            return Ok(Some(report.clone()));
        }
        let dir = ModelDir::open(&self.model_dir().to_string_lossy())?;
        let (best, _) = Model::load(&dir, &LoadMode::AsIs, &self.kernels)?;
        Ok(Some(evaluate(&best, part, self.job.task, &Loss::default(), &self.kernels, DType::F32)))
    }

    fn model_dir(&self) -> PathBuf {
        self.job.out.join("model")
    }

    fn with_checkpoint(&self, error: TrainError) -> TrainError {
        match error {
            TrainError::NotFinite { what, step, place, advice, .. } => {
                let checkpoint = Checkpoints::of(&self.job.out).latest();
                TrainError::NotFinite { what, step, place, advice, checkpoint }
            }
            cause if cause.is_input() => cause,
            cause => TrainError::Failed { cause: Box::new(cause), checkpoint: Checkpoints::of(&self.job.out).latest() },
        }
    }

    fn write_run_json(&self, outcome: &serde_json::Value) -> Result<(), TrainError> {
        let Setup { model, data, report, .. } = &self.setup;
        let value = json!({
            "job": self.job.resolved(),
            "versions": {"trainyard": env!("CARGO_PKG_VERSION")},
            "device": {"kernels": self.kernels.name(), "threads": self.kernels.threads(), "cpu": setup::cpu_name()},
            "seed": self.job.seed,
            "model": {"fingerprint": self.state.identity.model, "parameters": model.weights.count(), "loading": report},
            "data": data_json(data, &self.state.identity.training.sha256),
            "timings": {"training_seconds": self.state.elapsed_seconds},
            "memory": {"saved_activation_bytes": self.totals.saved_bytes, "pool": pool_json(self.profiling.pool_stats(self.kernels.pool()))},
            "outcome": outcome,
        });
        let path = self.job.out.join(RUN_JSON);
        let text = serde_json::to_string_pretty(&value).map_err(|e| TrainError::io("write", &path, e.into()))?;
        Ok(model::files::atomic::write(&path, |file| file.write_all(text.as_bytes()))?)
    }
}

/// A learning rate that never gets past its warm-up is a slip of the job, not a wish.
fn refuse_endless_warmup(job: &Job, total_steps: u64) -> Result<(), TrainError> {
    match job.schedule.warmup_steps {
        Some(warmup) if warmup >= total_steps => Err(TrainError::Unfit(format!(
            "schedule.warmup_steps is {warmup}, but the run makes only {total_steps} updates: lower it, or train longer"
        ))),
        _ => Ok(()),
    }
}

fn data_json(data: &Loaded, fingerprint: &str) -> serde_json::Value {
    json!({
        "fingerprint": fingerprint,
        "labels": data.labels.names(),
        "train": data.train_counts,
        "validation": data.validation_counts,
        "test": data.test_counts,
    })
}

fn pool_json(stats: PoolStats) -> serde_json::Value {
    json!({"peak_bytes": stats.peak, "reserved_bytes": stats.reserved, "system_allocations": stats.system_allocations})
}
