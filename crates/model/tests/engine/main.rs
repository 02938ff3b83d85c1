//! The engine as a whole: tape, operators, encoders and loading, over both implementations of the kernels.

mod differences;
mod encoder_gradients;
mod frozen;
mod inference;
mod invariance;
mod kernels_agree;
mod loading;
mod minilm;
mod operator_gradients;
mod policies;
mod roberta_lengths;
mod support;
