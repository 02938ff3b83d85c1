//! The error of the file layer.

use super::FileDType;
use super::pickle::PickleError;
use super::safetensors::HeaderError;
use super::tarball::ArchiveError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a model file could not be read or written.
///
/// Every message is complete in itself: it names the file and carries its cause, so print it as it is, without
/// walking a source chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused an operation on a file.
    #[error("cannot {action} `{}`: {cause}", path.display())]
    Io {
        /// What was tried, as a verb: `open`, `read`, `rename`.
        action: &'static str,
        /// The file it was tried on.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// What the user named is not a model.
    #[error("`{spec}` is not a model: {looked_for}")]
    NotAModel {
        /// What the user typed.
        spec: String,
        /// What was looked for, and where.
        looked_for: String,
    },
    /// A model directory without weights.
    #[error(
        "no weights in `{}`: looked for model.safetensors, model.safetensors.index.json, pytorch_model.bin and \
         pytorch_model.bin.index.json",
        dir.display()
    )]
    NoWeights {
        /// The directory that was searched.
        dir: PathBuf,
    },
    /// A text file that is larger than any honest one.
    #[error("`{}` is larger than {limit} bytes, the limit for this kind of file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A text file that is not UTF-8.
    #[error("`{}` is not UTF-8: the byte at offset {byte} starts no character", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first bad byte.
        byte: usize,
    },
    /// A shard index that is malformed or does not fit its shards.
    #[error("shard index `{}`: {problem}", path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong in it.
        problem: String,
    },
    /// A safetensors file that breaks the format.
    #[error("`{}`: {cause}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        cause: HeaderError,
    },
    /// A `pytorch_model.bin` that is damaged or asks for more than tensors.
    #[error("`{}`: {cause}", path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        cause: PickleError,
    },
    /// A `.tar.gz` that is damaged or unsafe, or cannot be written.
    #[error("`{}`: {cause}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        cause: ArchiveError,
    },
    /// The Hugging Face hub did not deliver.
    #[error("hf:{repo}: {problem}")]
    Hub {
        /// `org/name` or `org/name@revision`.
        repo: String,
        /// What failed and what to do.
        problem: String,
    },
    /// A tensor that the checkpoint does not hold.
    #[error("no tensor `{name}` in `{}`", dir.display())]
    UnknownTensor {
        /// The name asked for.
        name: String,
        /// The checkpoint's directory.
        dir: PathBuf,
    },
    /// A tensor whose elements are not floating-point numbers this library reads.
    #[error("tensor `{name}` in `{}` holds {dtype}; weights must be F32, F64, F16 or BF16", file.display())]
    NotFloat {
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: FileDType,
        /// The file it lies in.
        file: PathBuf,
    },
    /// A read into a buffer of the wrong length.
    #[error(
        "tensor `{name}` in `{}` has {stored} elements, {wanted} were asked for",
        file.display()
    )]
    WrongLength {
        /// The tensor.
        name: String,
        /// The file it lies in.
        file: PathBuf,
        /// Elements in the file.
        stored: usize,
        /// Elements in the caller's buffer.
        wanted: usize,
    },
    /// Tensors that cannot be written as a safetensors file.
    #[error("cannot write tensor `{name}`: {problem}")]
    Unwritable {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl FileError {
    /// Whether what the user named is at fault, not the machine: a full disk or a failed sync is not.
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Io { action, .. } if !matches!(*action, "open" | "read"))
            && !matches!(self, Self::Hub { .. })
    }

    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { action, path: path.into(), cause }
    }
}
