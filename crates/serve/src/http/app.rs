//! What every handler needs: the models, the limits, the metrics; and the one way to an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use crate::engine::{Answer, Answers, Engine, Timing};
use crate::failure::{Failure, Kind};
use crate::input::{Input, InputOptions};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::registry::Registry;
use crate::served::Served;
use crate::task::{Task, some_done};
use crate::telemetry::{Stage, Telemetry, Trace};

/// A running server's state.
pub struct App {
    /// The models.
    pub registry: Registry,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// What the server was started with.
    pub options: Options,
    /// Where traces go.
    pub telemetry: Telemetry,
    phase: AtomicU8,
}

/// What a server does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Loading the models it was started with.
    Loading,
    /// Answering.
    Ready,
    /// Finishing what is in flight, then ending.
    Draining,
}

/// When a request came, until when it is of use, and its trace.
#[derive(Clone)]
pub struct Arrival {
    /// When its head was read.
    pub at: Instant,
    /// When its answer is no longer of use.
    pub deadline: Instant,
    /// Its trace, where traces are collected.
    pub trace: Trace,
}

/// The inputs of a request.
pub struct Inputs {
    /// The inputs, or why one is none.
    pub each: Vec<Result<Input, Failure>>,
    /// The field that lists them, if they came as a list: failures then name their position.
    pub list: Option<&'static str>,
}

impl Inputs {
    /// One input that is no list.
    pub fn one(input: Input) -> Self {
        Self { each: vec![Ok(input)], list: None }
    }
}

/// Gives failures in a list their position.
pub fn placed<T>(list: Option<&str>, results: Vec<Result<T, Failure>>) -> Vec<Result<T, Failure>> {
    let Some(list) = list else { return results };
    let place = |(index, result): (usize, Result<T, Failure>)| result.map_err(|failure| failure.in_input(list, index));
    results.into_iter().enumerate().map(place).collect()
}

impl App {
    /// A server that loads its models.
    pub fn new(options: Options, metrics: Arc<Metrics>, telemetry: Telemetry) -> Self {
        let phase = AtomicU8::new(Phase::Loading as u8);
        Self { registry: Registry::default(), metrics, options, telemetry, phase }
    }

    /// What the server does at the moment.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Loading,
            1 => Phase::Ready,
            _ => Phase::Draining,
        }
    }

    /// Goes on to a phase; never back.
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    /// Fails unless requests are answered.
    ///
    /// # Errors
    /// [`Kind::Unavailable`].
    pub fn ready(&self) -> Result<(), Failure> {
        match self.phase() {
            Phase::Ready => Ok(()),
            Phase::Loading => Err(Failure::new(Kind::Unavailable, "the models are still loading").retry_after(1)),
            Phase::Draining => Err(Failure::new(Kind::Unavailable, "the server is shutting down").retry_after(5)),
        }
    }

    /// Runs inputs through a model and gives one answer or failure for each, with its position.
    ///
    /// # Errors
    /// What concerns all inputs.
    pub async fn answer(
        &self,
        arrival: &Arrival,
        served: &Served,
        inputs: Inputs,
        options: &InputOptions,
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        self.check_count(inputs.each.len(), inputs.list.unwrap_or("inputs"))?;
        let answers = self.run(arrival, served, inputs.each, options).await?;
        if some_done(&answers).is_ok() {
            self.count_failures(answers.iter().filter_map(|answer| Some(answer.as_ref().err()?.kind)));
        }
        Ok(placed(inputs.list, answers))
    }

    /// Counts what failed within a request that has an answer; one that fails as a whole is counted where its response is
    /// made.
    pub fn count_failures(&self, failures: impl IntoIterator<Item = Kind>) {
        failures.into_iter().for_each(|kind| self.metrics.failed(kind));
    }

    /// Refuses none and too many inputs.
    ///
    /// # Errors
    /// Names the field.
    pub fn check_count(&self, count: usize, field: &str) -> Result<(), Failure> {
        let limit = self.options.limits.inputs;
        if count == 0 {
            return Err(Failure::invalid(field, "is an empty list; send at least one text"));
        }
        if count > limit {
            let text = format!("{count} inputs are over the limit of {limit} (--max-inputs); send fewer at a time");
            return Err(Failure::new(Kind::TooManyInputs, text).in_field(field));
        }
        Ok(())
    }

    /// As [`App::answer`], for inputs that were counted before and get their positions later; their failures are not counted.
    ///
    /// # Errors
    /// What concerns all inputs.
    pub async fn run(
        &self,
        arrival: &Arrival,
        served: &Served,
        mut inputs: Vec<Result<Input, Failure>>,
        options: &InputOptions,
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let engine = served.engine()?;
        if Task::of(engine.config()) == Task::TokenClassification {
            inputs.iter_mut().for_each(refuse_pair);
        }
        let Answers { each, timing } = engine.answer(inputs, options, arrival.deadline).await?;
        if let Some(timing) = &timing {
            self.note(arrival, served, timing, each.iter().flatten().count());
        }
        Ok(each)
    }

    fn note(&self, arrival: &Arrival, served: &Served, timing: &Timing, inputs: usize) {
        self.metrics.tokenized(&served.name, timing);
        self.metrics.answered(&served.name, arrival.at.elapsed().as_secs_f64(), inputs);
        let stages = [
            Stage { name: "tokenize", from: timing.began, to: timing.queued },
            Stage { name: "queue", from: timing.queued, to: timing.started },
            Stage { name: "infer", from: timing.started, to: timing.finished },
        ];
        self.telemetry.stages(&arrival.trace, &stages, timing.tokens, inputs);
    }

    /// A model for a task, by name or the first one for it.
    ///
    /// # Errors
    /// When there is none of that name, or it is for another task than `route` answers.
    pub fn model(&self, name: Option<&str>, task: Task, route: &str) -> Result<Arc<Served>, Failure> {
        self.ready()?;
        let is_for_task = |served: &Arc<Served>| served.engine().is_ok_and(|e| Task::of(e.config()) == task);
        let first = || self.registry.all().into_iter().find(is_for_task);
        let served = match name {
            None => first().map_or_else(|| self.registry.get(None), Ok)?,
            Some(_) => self.registry.get(name)?,
        };
        let engine: &Engine = served.engine()?;
        Task::of(engine.config()).require(task, route)?;
        Ok(served)
    }
}

/// Entities are of one text; a second one would have no place to stand in.
fn refuse_pair(input: &mut Result<Input, Failure>) {
    if input.as_ref().is_ok_and(|input| input.pair.is_some()) {
        *input = Err(Failure::new(Kind::Invalid, "token classification takes single texts, not pairs"));
    }
}
