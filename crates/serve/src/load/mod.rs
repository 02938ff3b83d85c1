//! Measuring a server from the outside: an open-loop load generator.
//!
//! [`run`] carries out a [`Plan`] and gives a [`Report`]. With [`Pace::Open`] a request starts when the schedule says so,
//! whether or not the ones before it were answered, and its latency counts from that scheduled moment. A server that
//! stalls is therefore charged for every request that should have started meanwhile (no "coordinated omission").
//! [`Pace::Closed`] keeps a number of requests in flight instead, to find the rate at which a server saturates.

mod client;
mod drive;
mod report;
mod schedule;
mod target;
#[cfg(test)]
mod tests;
mod texts;

use std::path::PathBuf;
use std::time::Duration;

pub use drive::{run, run_until};
pub use report::{FailureKind, Latency, Refusal, Report, Starts};
pub use schedule::Arrival;
pub use target::{Protocol, Target, Trust};
pub use texts::read_texts;

/// Most requests that a schedule may have waiting at once, were the server never to answer.
const MAX_OUTSTANDING: f64 = 1e6;
const MAX_RATE: f64 = 1e6;
const MAX_SECONDS: f64 = 7.0 * 86_400.0;
const MAX_CONNECTIONS: usize = 65_536;
const MAX_INPUTS: usize = 65_536;

/// What to send, where, and when.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where requests go and what form their bodies have.
    pub target: Target,
    /// The texts, taken in order and again from the first.
    pub texts: Vec<String>,
    /// When requests start.
    pub pace: Pace,
    /// How long requests are started and counted.
    pub duration: Duration,
    /// How long requests are sent before that without being counted.
    pub warmup: Duration,
    /// Texts of one request.
    pub inputs_per_request: usize,
    /// From the scheduled start of a request to the end of its answer; later it counts as failed.
    pub timeout: Duration,
    /// Most connections at once, kept alive; a request beyond them waits for one.
    pub max_connections: usize,
    /// Seed of the arrival times.
    pub seed: u64,
}

/// When requests start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// At scheduled times, regardless of answers.
    Open {
        /// Requests per second.
        rate: f64,
        /// How the times are spaced.
        arrival: Arrival,
    },
    /// Each of so many callers starts its next request when its last one is answered.
    Closed {
        /// Requests in flight.
        concurrency: usize,
    },
}

impl Plan {
    /// Refuses what cannot be carried out or would not end.
    fn check(&self) -> Result<(), LoadError> {
        let within = |name, value: f64, low: f64, high: f64| {
            let inside = value >= low && value <= high;
            if inside { Ok(()) } else { Err(LoadError::OutOfRange { name, value, low, high }) }
        };
        within("seconds", self.duration.as_secs_f64(), 0.001, MAX_SECONDS)?;
        within("warmup", self.warmup.as_secs_f64(), 0.0, MAX_SECONDS)?;
        within("timeout", self.timeout.as_secs_f64(), 0.001, MAX_SECONDS)?;
        within("inputs-per-request", self.inputs_per_request as f64, 1.0, MAX_INPUTS as f64)?;
        within("max-connections", self.max_connections as f64, 1.0, MAX_CONNECTIONS as f64)?;
        match self.pace {
            Pace::Open { rate, .. } => {
                within("rate", rate, 0.001, MAX_RATE)?;
                within("rate × timeout", rate * self.timeout.as_secs_f64(), 0.0, MAX_OUTSTANDING)?;
            }
            Pace::Closed { concurrency } => {
                within("concurrency", concurrency as f64, 1.0, self.max_connections as f64)?;
            }
        }
        if self.texts.is_empty() { Err(LoadError::NoTexts) } else { Ok(()) }
    }

    /// The body of the request with this number.
    fn body(&self, number: u64) -> Vec<u8> {
        let first = number.wrapping_mul(self.inputs_per_request as u64) % self.texts.len() as u64;
        let texts: Vec<&str> = (0..self.inputs_per_request)
            .map(|offset| self.texts[(first as usize + offset) % self.texts.len()].as_str())
            .collect();
        self.target.body(&texts)
    }
}

/// Why a plan was not carried out. What a server does wrong is counted in the [`Report`] instead.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A number of the plan.
    #[error("{name} is {value}; it must be between {low} and {high}")]
    OutOfRange {
        /// Which one.
        name: &'static str,
        /// What was asked for.
        value: f64,
        /// Smallest allowed.
        low: f64,
        /// Largest allowed.
        high: f64,
    },
    /// There is nothing to send.
    #[error("there are no texts to send; give a file with one text a line")]
    NoTexts,
    /// The URL.
    #[error("{url}: {problem}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// The API key.
    #[error("the API key holds characters that an HTTP header cannot carry")]
    ApiKey,
    /// The file of texts cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file of texts is larger than a load test needs.
    #[error("{path} has more than {limit} bytes; give a smaller sample")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Most bytes.
        limit: u64,
    },
    /// The file of texts is not UTF-8.
    #[error("{path} line {line}: not UTF-8 from byte {byte} of the line on; convert the file to UTF-8")]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, within the line.
        byte: usize,
    },
    /// No certificates to check the server's against, or bad ones.
    #[error("{0}; name a PEM file of trusted certificates, or accept any")]
    Certificates(String),
    /// A thread of the generator could not be started.
    #[error("cannot start the thread that keeps the schedule: {0}")]
    Thread(std::io::Error),
}
