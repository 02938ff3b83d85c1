//! What a server is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use model::InferenceDtype;

use crate::engine::EngineOptions;

/// A model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// What requests call it.
    pub name: String,
    /// Model directory, run directory, `model.tar.gz` or `hf:org/name`.
    pub source: String,
}

/// A model cannot be called that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 256 letters, digits, dots, dashes, underscores, and slashes between them")]
pub struct BadName;

impl ModelSpec {
    /// A model under a name, wherever it is named: on the command line and over HTTP.
    ///
    /// # Errors
    /// [`BadName`], unless it has 1 to 256 letters, digits, dots, dashes, underscores and, not at its ends, slashes.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Result<Self, BadName> {
        let name = name.into();
        let in_length = (1..=256).contains(&name.chars().count());
        let allowed = |c: char| c.is_alphanumeric() || "._-/".contains(c);
        if in_length && name.chars().all(allowed) && !name.starts_with('/') && !name.ends_with('/') {
            Ok(Self { name, source: source.into() })
        } else {
            Err(BadName)
        }
    }
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
    /// Fails loading of models that the engine runs and that are for another task than this, by the hub's name.
    pub task: Option<String>,
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
    /// Bytes that all models may take in memory together; what is free where not said.
    pub memory: Option<u64>,
    /// Whether everyone who can connect may load and unload models, without a key. A SageMaker endpoint's container listens on
    /// all addresses of a network where nobody else is, and nothing there has a key.
    pub trusted_network: bool,
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

impl PythonOptions {
    /// In the user's cache: `$XDG_CACHE_HOME`, else `~/.cache`, else the directory for temporary files.
    pub fn default_environments() -> PathBuf {
        let directory = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = directory("XDG_CACHE_HOME").or_else(|| Some(directory("HOME")?.join(".cache")));
        cache.unwrap_or_else(std::env::temp_dir).join("trainyard/environments")
    }
}

impl Options {
    /// Models on `127.0.0.1:8080` with all defaults.
    pub fn new(models: Vec<ModelSpec>) -> Self {
        let engine = EngineOptions {
            dtype: InferenceDtype::F32,
            threads: tensor::physical_cores(),
            teams: 1,
            max_batch_tokens: 4096,
            max_queue: 2048,
            truncate: false,
        };
        let python = PythonOptions {
            program: "inference.py".into(),
            python: "python3".into(),
            workers: 1,
            start_timeout: Duration::from_secs(300),
            memory: None,
            environments: PythonOptions::default_environments(),
        };
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            models,
            engine,
            limits: RequestLimits::default(),
            api_keys: crate::http::ApiKeys::default(),
            tls: None,
            multi_model: None,
            default_accept: None,
            task: None,
            python,
            otlp_endpoint: None,
        }
    }

    /// Whether only this machine can connect.
    pub fn is_loopback(&self) -> bool {
        self.host.is_loopback()
    }

    /// The address that clients are told: loopback where the server listens on all.
    pub fn shown_host(&self) -> IpAddr {
        if self.host.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { self.host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_stand_in_a_path_and_a_log() {
        for name in ["a", "org/model-1.0_x", "Füße", &"x".repeat(256)] {
            assert!(ModelSpec::new(name, "s").is_ok(), "{name}");
        }
        for name in ["", "/a", "a/", "a b", "a=b", "a\n", "a?", &"x".repeat(257)] {
            assert_eq!(ModelSpec::new(name, "s"), Err(BadName), "{name}");
        }
    }
}
