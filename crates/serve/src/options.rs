//! What a server is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::EngineOptions;
use crate::task::Task;

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// What requests call it.
    pub name: String,
    /// Model directory, run directory, `model.tar.gz` or `hf:org/name`.
    pub source: String,
}

/// Everything a server needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to bind.
    pub host: IpAddr,
    /// The port to bind; 0 for any.
    pub port: u16,
    /// Served from the start; the first one answers routes that name no model.
    pub models: Vec<ModelSpec>,
    /// How models run.
    pub engine: EngineOptions,
    /// What a request may ask for.
    pub limits: RequestLimits,
    /// Accepted keys; none means that no key is needed.
    pub api_keys: crate::http::ApiKeys,
    /// Encryption.
    pub tls: Option<Tls>,
    /// Present when models may be loaded and unloaded over HTTP.
    pub multi_model: Option<MultiModel>,
    /// What `/invocations` answers when a request accepts anything.
    pub default_accept: Option<String>,
    /// Fails loading of models for another task.
    pub task: Option<Task>,
    /// How Python handlers run.
    pub python: PythonOptions,
    /// Where traces go: the base URL of an OTLP/HTTP collector.
    pub otlp_endpoint: Option<String>,
}

/// What a request may ask for and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Inputs of a request.
    pub inputs: usize,
    /// From arrival to answer.
    pub timeout: Duration,
    /// Connections at a time; more wait to be accepted.
    pub connections: usize,
    /// Until a connection has sent a request's head, from its opening or the last answer.
    pub header_timeout: Duration,
    /// After SIGTERM, for requests in flight.
    pub drain: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            body_bytes: 6 << 20,
            inputs: 256,
            timeout: Duration::from_secs(60),
            connections: 1024,
            header_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(25),
        }
    }
}

/// Where keys and certificates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// PEM files.
    Files {
        /// The certificate and those that vouch for it.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// A certificate made at the start, for the host's names; clients must be told to trust it.
    SelfSigned,
}

/// The multi-model API.
#[derive(Clone, Debug)]
pub struct MultiModel {
    /// Models are loaded from below this directory only.
    pub root: PathBuf,
    /// Bytes that all models' weights may take in memory together; what the machine has free where not said.
    pub memory: Option<u64>,
}

/// Python handlers.
#[derive(Clone, Debug)]
pub struct PythonOptions {
    /// The script in `code/`.
    pub program: String,
    /// The interpreter that virtual environments are made from.
    pub python: PathBuf,
    /// Worker processes of a model.
    pub workers: usize,
    /// For `requirements.txt` and `model_fn`.
    pub start_timeout: Duration,
    /// Bytes of address space of a worker.
    pub memory: Option<u64>,
    /// Where virtual environments are kept.
    pub environments: PathBuf,
}

impl Options {
    /// Whether only this machine can connect.
    pub fn is_loopback(&self) -> bool {
        self.host.is_loopback()
    }

    /// The address that clients are told: loopback where the server listens on all.
    pub fn shown_host(&self) -> IpAddr {
        if self.host.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { self.host }
    }
}
