//! What a user does and gets, shown on the binary itself with a tiny model in a temporary directory.

mod bad_data;
mod bad_job;
mod bad_model;
mod bench_serve;
mod common;
mod failures;
mod package_inspect;
mod predict_eval;
mod record;
mod resume;
mod train;
