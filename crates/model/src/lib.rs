//! Transformer models: the tape, fused operators with hand-written gradients, architectures, and Hugging Face files.
//!
//! [`Encoder`] is a recipe made from a [`ModelConfig`]; [`Weights`] hold the values; a [`Tape`] runs the recipe over a
//! ragged [`Batch`] on some [`Kernels`](tensor::Kernels) and, in training, runs it backward into [`Gradients`].
//! [`Model`] puts them together with a [`Tokenizer`](tokenizer::Tokenizer) and a model directory's files.

mod batch;
pub mod config;
mod encoder;
pub mod files;
mod inference;
mod loss;
mod model;
pub mod ops;
mod params;
pub mod scores;
mod tape;
pub mod tokenizer;

pub use batch::{Batch, Sequence};
pub use config::{EncoderConfig, Family, Head, ModelConfig, Problem};
pub use encoder::{Encoder, Pooling};
pub use inference::{InferenceDtype, UnknownDtype};
pub use loss::{Loss, Targets};
pub use model::{
    LoadMode, LoadReport, Model, ModelError, WeightsComparison, compare_weights, load_weights, save_weights,
};
pub use params::{FilePart, Gradients, Init, ParamDescr, ParamId, Weights};
pub use tape::{InputGradient, Op, Pass, Policy, Randomness, Saved, Tape, Value};
