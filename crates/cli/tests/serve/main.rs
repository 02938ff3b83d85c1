//! `trainyard serve`, driven as its clients do: over HTTP, with a tiny model in a temporary directory.

#[path = "../e2e/common.rs"]
#[allow(dead_code, reason = "shared with the tests of the other commands")]
mod common;

mod awkward;
mod engine;
mod handlers;
mod hostile;
mod lifecycle;
mod limits;
mod models;
mod options;
mod protocols;
mod rig;
mod soak;
