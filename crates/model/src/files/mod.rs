//! Model files: what is read from a disk or the Hugging Face hub, and what is written back.
//!
//! [`ModelDir`] turns what a user typed (a directory, a run, a `model.tar.gz`, `hf:org/name`) into a directory with a
//! `config.json`. [`Checkpoint`] opens the weights in it, whatever their format, and converts tensors to `f32` on
//! request. [`write_safetensors`] writes weights, [`tarball`] packs and unpacks whole models, and [`atomic`] is the
//! temporary-name-then-rename step under both.
//!
//! Everything read here may come from a stranger: sizes are checked before memory is asked for, pickles are
//! interpreted against a short list of allowed names, archives cannot write outside their destination. The parsers
//! under the file layer ([`safetensors::Header::parse`], [`pickle::TorchFile::parse`], [`tarball::unpack`]) take bytes,
//! so they are fuzzed without a disk.
//!
//! ```no_run
//! use model::files::{Checkpoint, ModelDir};
//!
//! # fn main() -> Result<(), model::files::FileError> {
//! let model = ModelDir::open("runs/tweets")?;
//! let checkpoint = Checkpoint::open(model.path())?;
//! for name in checkpoint.names() {
//!     if let Some(info) = checkpoint.info(name) {
//!         println!("{name}: {:?} {}", info.shape, info.dtype);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod atomic;
mod checkpoint;
mod convert;
mod error;
mod hub;
mod index;
pub mod pickle;
pub mod safetensors;
mod source;
pub mod tarball;
mod write;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use error::FileError;
pub use source::ModelDir;
pub use write::{SaveDType, TensorRef, write_safetensors};

/// Element types a weights file can hold; `Display` prints the safetensors name (`F32`, `BF16`, `I64`).
pub use ::safetensors::Dtype as FileDType;

use std::io::Read;
use std::path::Path;

/// Reads a small text file whole; a file over `limit` bytes or not UTF-8 is refused.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    let file = std::fs::File::open(path).map_err(|e| FileError::io("open", path, e))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| FileError::io("read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { path: path.into(), limit });
    }
    String::from_utf8(bytes).map_err(|e| FileError::NotUtf8 { path: path.into(), byte: e.utf8_error().valid_up_to() })
}
