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
use crate::task::Task;
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
    /// Whether they came as a list, so that failures name their position.
    pub listed: bool,
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

    /// Runs inputs through a model and gives one answer or failure for each.
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
        let engine = served.engine()?;
        let (count, limit) = (inputs.each.len(), self.options.limits.inputs);
        if count == 0 {
            return Err(Failure::invalid("inputs", "is an empty list; send at least one text"));
        }
        if count > limit {
            let text = format!("{count} inputs are over the limit of {limit} (--max-inputs); send fewer at a time");
            return Err(Failure::new(Kind::TooManyInputs, text).in_field("inputs"));
        }
        let Answers { each, timing } = engine.answer(inputs.each, options, arrival.deadline).await?;
        if let Some(timing) = &timing {
            self.note(arrival, served, timing, count);
        }
        let placed = |(index, result): (usize, Result<Answer, Failure>)| {
            result.map_err(|failure| failure.in_input(inputs.listed.then_some(index)))
        };
        let results: Vec<_> = each.into_iter().enumerate().map(placed).collect();
        let failed = results.iter().filter_map(|result| result.as_ref().err());
        if results.iter().any(Result::is_ok) {
            // A request that fails as a whole is counted where its response is made.
            failed.for_each(|failure| self.metrics.failed(failure.kind));
        }
        Ok(results)
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

    /// A model for a task, by name or the first one.
    ///
    /// # Errors
    /// When there is none of that name, or it is for another task than `route` answers.
    pub fn model(&self, name: Option<&str>, task: Task, route: &str) -> Result<Arc<Served>, Failure> {
        self.ready()?;
        let served = self.registry.get(name)?;
        let engine: &Engine = served.engine()?;
        Task::of(engine.config()).require(task, route)?;
        Ok(served)
    }
}
