//! Serving: encoders and Python handlers over HTTP, by the protocols that clients speak already.
//!
//! Three layers with one arrow. [`http`] reads requests of every protocol and writes answers; [`Engine`](engine::Engine)
//! tokenizes, queues and runs texts, one result or [`Failure`](failure::Failure) for each; the
//! [`Scheduler`](scheduler::Scheduler) makes batches of whatever waits for whichever [`Runner`](scheduler::Runner) is
//! free. [`python`] runs a model's own handlers in supervised processes instead of the engine. [`Server`](server::Server)
//! binds it to a port, and [`load`] measures one from the outside.
//!
//! ```no_run
//! use serve::options::{ModelSpec, Options};
//! use serve::server::{Event, Server, stop_signal};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options::new(vec![ModelSpec::new("tweets", "runs/tweets/model.tar.gz")?]);
//! let server = Server::bind(options).await?;
//! let tell = |event: Event| {
//!     if let Event::Ready(seconds) = event {
//!         println!("ready after {seconds} s");
//!     }
//! };
//! // Until Ctrl-C or SIGTERM; requests in flight get their answers first.
//! server.run(stop_signal, tell).await?;
//! # Ok(())
//! # }
//! ```

pub mod engine;
pub mod failure;
pub mod http;
pub mod input;
pub mod load;
mod memory;
pub mod metrics;
pub mod options;
pub mod python;
pub mod registry;
pub mod scheduler;
pub mod served;
pub mod server;
pub mod task;
pub mod telemetry;
