//! The header of a safetensors file: where each tensor lies, checked before any byte of it is touched.
//!
//! Format (<https://github.com/huggingface/safetensors#format>): a little-endian `u64` header length, that many bytes
//! of JSON, then the tensors' bytes, back to back.

use super::FileDType;
use ::safetensors::tensor::TensorInfo as RawInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Longest header accepted, the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

const PREFIX_BYTES: usize = 8;

/// What is wrong in a safetensors file. Offsets are in bytes from the start of the tensor data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer than the eight bytes of the length prefix.
    #[error("not a safetensors file: {0} bytes, too short for the 8-byte header length; was the download cut off?")]
    TooShort(usize),
    /// A header length over the format's limit.
    #[error(
        "not a safetensors file: its first 8 bytes announce a header of {0} bytes, over the limit of {MAX_HEADER_BYTES}"
    )]
    HeaderTooLarge(u64),
    /// The header would end after the file does.
    #[error("the header ends at byte {ends_at} but the file has only {file_bytes} bytes: the file is truncated")]
    HeaderTruncated {
        /// Where the header should end.
        ends_at: u64,
        /// Length of the file.
        file_bytes: usize,
    },
    /// The header is not the JSON object it should be.
    #[error("bad safetensors header: {0}")]
    BadJson(String),
    /// Shape and element type do not give the number of bytes.
    #[error("tensor `{name}`: shape {shape:?} of {dtype} does not take the {stored} bytes it is given")]
    SizeMismatch {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its element type.
        dtype: FileDType,
        /// Bytes between its offsets.
        stored: usize,
    },
    /// Offsets in the wrong order.
    #[error("tensor `{name}`: its end offset {end} lies before its start {start}")]
    Backwards {
        /// The tensor.
        name: String,
        /// Start offset.
        start: usize,
        /// End offset.
        end: usize,
    },
    /// Offsets after the end of the file.
    #[error(
        "tensor `{name}` ends at data byte {end} but the file holds only {data_bytes} bytes of data: the file is \
         truncated"
    )]
    PastEnd {
        /// The tensor.
        name: String,
        /// End offset.
        end: usize,
        /// Bytes of tensor data in the file.
        data_bytes: usize,
    },
    /// Two tensors share bytes.
    #[error("tensor `{name}` starts at data byte {start}, inside the tensor before it, which ends at {previous_end}")]
    Overlap {
        /// The tensor.
        name: String,
        /// Start offset.
        start: usize,
        /// Where the tensor before it ends.
        previous_end: usize,
    },
    /// Bytes that belong to no tensor.
    #[error("data bytes {start}..{end} belong to no tensor")]
    Hole {
        /// First unowned byte.
        start: usize,
        /// End of the unowned bytes.
        end: usize,
    },
}

/// One tensor's place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Element type.
    pub dtype: FileDType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Byte range in the whole file, inside its bounds and as long as `shape` and `dtype` say.
    pub range: Range<usize>,
}

/// A validated header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// Tensors by name.
    pub tensors: BTreeMap<String, Entry>,
    /// The free-form strings under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

impl Header {
    /// Reads and checks the header of `file`, the bytes of a whole safetensors file.
    ///
    /// Afterwards every [`Entry::range`] is inside `file`, no two overlap, and together they cover all of it.
    ///
    /// # Errors
    /// The first thing found wrong, with the tensor's name where there is one.
    pub fn parse(file: &[u8]) -> Result<Self, HeaderError> {
        let (&prefix, rest) = file.split_first_chunk::<PREFIX_BYTES>().ok_or(HeaderError::TooShort(file.len()))?;
        let header_bytes = u64::from_le_bytes(prefix);
        if header_bytes > MAX_HEADER_BYTES {
            return Err(HeaderError::HeaderTooLarge(header_bytes));
        }
        let (json, data) = rest.split_at_checked(header_bytes as usize).ok_or(HeaderError::HeaderTruncated {
            ends_at: header_bytes + PREFIX_BYTES as u64,
            file_bytes: file.len(),
        })?;
        let raw: RawHeader = serde_json::from_slice(json).map_err(|e| HeaderError::BadJson(e.to_string()))?;
        check_layout(&raw.tensors, data.len())?;
        let data_start = file.len() - data.len();
        let tensors = raw.tensors.into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            (name, Entry { dtype: info.dtype, shape: info.shape, range: data_start + start..data_start + end })
        });
        Ok(Self { tensors: tensors.collect(), metadata: raw.metadata })
    }
}

/// Checks each tensor on its own, then that together they tile the `data_bytes` of the file.
fn check_layout(tensors: &BTreeMap<String, RawInfo>, data_bytes: usize) -> Result<(), HeaderError> {
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        let name = || name.clone();
        let stored = end.checked_sub(start).ok_or_else(|| HeaderError::Backwards { name: name(), start, end })?;
        if end > data_bytes {
            return Err(HeaderError::PastEnd { name: name(), end, data_bytes });
        }
        if byte_len(info.dtype, &info.shape) != Some(stored) {
            let (shape, dtype) = (info.shape.clone(), info.dtype);
            return Err(HeaderError::SizeMismatch { name: name(), shape, dtype, stored });
        }
    }
    let mut by_offset: Vec<_> = tensors.iter().collect();
    by_offset.sort_by_key(|(_, info)| info.data_offsets);
    let mut covered = 0;
    for (name, info) in by_offset {
        let (start, end) = info.data_offsets;
        if start < covered {
            return Err(HeaderError::Overlap { name: name.clone(), start, previous_end: covered });
        }
        if start > covered {
            return Err(HeaderError::Hole { start: covered, end: start });
        }
        covered = end;
    }
    if covered < data_bytes {
        return Err(HeaderError::Hole { start: covered, end: data_bytes });
    }
    Ok(())
}

/// Bytes of a tensor; `None` when the product overflows or ends inside a byte.
fn byte_len(dtype: FileDType, shape: &[usize]) -> Option<usize> {
    let bits = shape.iter().try_fold(dtype.bitsize(), |n, &d| n.checked_mul(d))?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

#[derive(Default)]
struct RawHeader {
    tensors: BTreeMap<String, RawInfo>,
    metadata: BTreeMap<String, String>,
}

/// Written out, not derived: a repeated name is an error, and an error inside an entry names its tensor.
impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with one entry per tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        header.metadata =
                            map.next_value().map_err(|e| A::Error::custom(format_args!("`__metadata__`: {e}")))?;
                        continue;
                    }
                    let info: RawInfo =
                        map.next_value().map_err(|e| A::Error::custom(format_args!("tensor `{name}`: {e}")))?;
                    if header.tensors.contains_key(&name) {
                        return Err(A::Error::custom(format_args!("tensor `{name}` is listed twice")));
                    }
                    header.tensors.insert(name, info);
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests;
