//! A restricted reader for `pytorch_model.bin`.
//!
//! A pickle is a program: loading one the usual way runs whatever its author wished. Here it is interpreted against a
//! list of allowed names (module `globals`) that can build tensors and dictionaries and nothing else; every other name
//! is refused and printed. Nothing is ever called.
//!
//! The file is a zip archive (`torch.save` since PyTorch 1.6) with `NAME/data.pkl`, the pickle, and `NAME/data/KEY`,
//! the bytes of each storage. Module `archive` reads the directory, `machine` runs the pickle, and this module joins the
//! two: a [`TorchTensor`] is a strided view whose every element lies in its storage.

mod archive;
mod arena;
mod globals;
mod machine;
#[cfg(test)]
mod tests;

use super::FileDType;
use archive::{Archive, ZipEntry};
use globals::TensorRecord;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Longest pickle interpreted. That of a 10,000-tensor model takes about 2 MB; the numbers are elsewhere.
pub const MAX_PICKLE_BYTES: u64 = 16 << 20;

/// Longest tensor name kept.
const MAX_NAME_BYTES: usize = 4096;

/// Why a `pytorch_model.bin` is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The format of `torch.save` before PyTorch 1.6, or with `_use_new_zipfile_serialization=False`.
    #[error(
        "written in the format torch used before 1.6, which is not read here; load it with torch and save it again, or \
         convert it to safetensors"
    )]
    OldFormat,
    /// Not a zip archive, or a damaged one.
    #[error("not a readable torch archive ({0}); was the download cut off?")]
    BadArchive(String),
    /// An entry of the archive that is not as it must be.
    #[error("archive entry `{entry}`: {problem}")]
    BadEntry {
        /// Name in the archive.
        entry: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The pickle names something that is not needed to hold tensors.
    #[error(
        "refused: the pickle names `{name}` (byte {at} of data.pkl), and only tensors and dictionaries are read, \
         because a pickle can run any code; if you trust the file, convert it to safetensors where it was made"
    )]
    ForeignGlobal {
        /// `module.name` as written in the file.
        name: String,
        /// Offset in `data.pkl`.
        at: usize,
    },
    /// A pickle instruction that torch does not write for a state dictionary.
    #[error(
        "refused: pickle instruction 0x{opcode:02x} at byte {at} of data.pkl is not one that torch uses for tensors"
    )]
    ForeignOpcode {
        /// The instruction.
        opcode: u8,
        /// Offset in `data.pkl`.
        at: usize,
    },
    /// A pickle that is cut off or does not make sense.
    #[error("damaged pickle at byte {at} of data.pkl: {problem}")]
    Malformed {
        /// What is wrong.
        problem: String,
        /// Offset in `data.pkl`.
        at: usize,
    },
    /// A tensor that does not fit its storage, or has no usable name.
    #[error("tensor `{name}`: {problem}")]
    BadTensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A pickle that holds something else than a dictionary of tensors.
    #[error("no tensors: the file must hold a state dictionary, tensor names to tensors, at its top level")]
    NoTensors,
}

/// A tensor in a torch file: a strided view into one storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchTensor {
    /// Element type.
    pub dtype: FileDType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Distance between neighbours along each dimension, in elements.
    strides: Vec<usize>,
    /// First element, in elements from the start of the storage.
    offset: usize,
    /// Which storage; tied tensors share one.
    storage: String,
}

/// A parsed `pytorch_model.bin`: its tensors by name, and where their bytes lie.
#[derive(Debug)]
pub struct TorchFile {
    /// Tensors by name.
    pub tensors: BTreeMap<String, TorchTensor>,
    storages: BTreeMap<String, ZipEntry>,
}

impl TorchFile {
    /// Reads the directory and the pickle of `file`, the bytes of a whole file; no tensor is read yet.
    ///
    /// # Errors
    /// [`PickleError`], for anything but a dictionary of tensors that lie inside the file.
    pub fn parse(file: &[u8]) -> Result<Self, PickleError> {
        let archive = Archive::parse(file)?;
        let pickle = archive.read(file, "data.pkl", MAX_PICKLE_BYTES)?;
        let mut parsed = Self { tensors: BTreeMap::new(), storages: BTreeMap::new() };
        for (name, record) in machine::run(&pickle)? {
            parsed.add(&archive, name, record)?;
        }
        if parsed.tensors.is_empty() {
            return Err(PickleError::NoTensors);
        }
        Ok(parsed)
    }

    /// The row-major bytes of `tensor`, called `name` in errors; `file` are the bytes that were parsed. Borrowed where
    /// the tensor is contiguous and its storage is not compressed, as in every file that torch itself writes.
    ///
    /// # Errors
    /// [`PickleError::BadEntry`] when the storage's checksum does not match.
    pub fn read<'a>(&self, file: &'a [u8], name: &str, tensor: &TorchTensor) -> Result<Cow<'a, [u8]>, PickleError> {
        let entry = self.storages.get(&tensor.storage).ok_or_else(|| tensor.bad(name, "its storage is missing"))?;
        let element_bytes = tensor.dtype.bitsize() / 8;
        let range = tensor.span().and_then(|n| {
            Some(tensor.offset.checked_mul(element_bytes)?..tensor.offset.checked_add(n)?.checked_mul(element_bytes)?)
        });
        let range = range.ok_or_else(|| tensor.bad(name, "its size overflows"))?;
        let span = match entry.read(file)? {
            Cow::Borrowed(bytes) => bytes.get(range).map(Cow::Borrowed),
            Cow::Owned(bytes) => bytes.get(range).map(|b| Cow::Owned(b.to_vec())),
        };
        let span = span.ok_or_else(|| tensor.bad(name, "it reaches past the end of its storage"))?;
        Ok(if tensor.is_contiguous() { span } else { Cow::Owned(tensor.gather(&span, element_bytes)) })
    }

    /// Enters a tensor of the pickle after checking that it lies inside its storage.
    fn add(&mut self, archive: &Archive, name: String, record: TensorRecord) -> Result<(), PickleError> {
        let shown: String = name.chars().take(80).collect();
        if name.len() > MAX_NAME_BYTES {
            return Err(PickleError::BadTensor { name: shown, problem: "its name is too long".into() });
        }
        let TensorRecord { storage, offset, shape, strides } = record;
        let tensor = TorchTensor { dtype: storage.dtype, shape, strides, offset, storage: storage.key };
        let entry_name = format!("data/{}", tensor.storage);
        let Some(entry) = archive.entry(&entry_name) else {
            return Err(tensor.bad(&shown, &format!("its storage `{entry_name}` is missing from the archive")));
        };
        let capacity = entry.len / (tensor.dtype.bitsize() / 8);
        let elements = tensor.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if elements.is_none_or(|n| n > capacity) {
            let shape = &tensor.shape;
            return Err(
                tensor.bad(&shown, &format!("shape {shape:?} is larger than its storage of {capacity} elements"))
            );
        }
        let end = tensor.span().and_then(|n| n.checked_add(tensor.offset));
        if end.is_none_or(|end| end > capacity) {
            return Err(tensor.bad(&shown, &format!("it reaches past the end of its storage of {capacity} elements")));
        }
        if self.tensors.contains_key(&name) {
            return Err(tensor.bad(&shown, "it is listed twice"));
        }
        self.storages.entry(tensor.storage.clone()).or_insert_with(|| entry.clone());
        self.tensors.insert(name, tensor);
        Ok(())
    }
}

impl TorchTensor {
    fn bad(&self, name: &str, problem: &str) -> PickleError {
        PickleError::BadTensor { name: name.into(), problem: problem.into() }
    }

    /// Elements from the first to the last of the view, both included; `None` on overflow.
    fn span(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape
            .iter()
            .zip(&self.strides)
            .try_fold(1usize, |n, (&size, &stride)| n.checked_add((size - 1).checked_mul(stride)?))
    }

    /// Whether the elements stand in row-major order without gaps.
    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        let row_major = self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        });
        row_major || self.shape.contains(&0)
    }

    /// Copies the elements of a strided view in row-major order. `span` starts at the view's first element.
    fn gather(&self, span: &[u8], element_bytes: usize) -> Vec<u8> {
        let elements: usize = self.shape.iter().product();
        let mut bytes = Vec::with_capacity(elements * element_bytes);
        let mut position = vec![0; self.shape.len()];
        let mut at = 0;
        for _ in 0..elements {
            bytes.extend_from_slice(&span[at * element_bytes..(at + 1) * element_bytes]);
            // Count up like an odometer, the last dimension first.
            for d in (0..position.len()).rev() {
                position[d] += 1;
                at += self.strides[d];
                if position[d] < self.shape[d] {
                    break;
                }
                at -= self.strides[d] * self.shape[d];
                position[d] = 0;
            }
        }
        bytes
    }
}
