//! Writing weights as safetensors.

use super::safetensors::MAX_HEADER_BYTES;
use super::{FileDType, FileError, atomic, convert};
use ::safetensors::tensor::TensorInfo as RawInfo;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

/// A tensor to write: row-major `data` with the product of `shape` elements.
#[derive(Debug, Clone, Copy)]
pub struct TensorRef<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    /// The elements.
    pub data: &'a [f32],
}

/// Element type of a written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SaveDType {
    /// 32-bit floats, bit for bit.
    #[default]
    F32,
    /// bfloat16, rounded to nearest even.
    Bf16,
    /// IEEE half precision, rounded to nearest even.
    F16,
}

impl SaveDType {
    fn file(self) -> FileDType {
        match self {
            Self::F32 => FileDType::F32,
            Self::Bf16 => FileDType::BF16,
            Self::F16 => FileDType::F16,
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum HeaderEntry<'a> {
    Metadata(BTreeMap<&'a str, &'a str>),
    Tensor(RawInfo),
}

/// Writes `tensors` to `path` in one step (see [`atomic::write`]), streaming: nothing is copied whole.
///
/// The file is the same for the same input, byte for byte: tensors are ordered by name. Its metadata holds
/// `{"format": "pt"}`, without which `transformers` refuses a file, and the pairs in `metadata`.
///
/// # Errors
/// [`FileError::Unwritable`] for a repeated or reserved name, a shape that does not fit its data, or a finite value
/// that `dtype` cannot hold; [`FileError::Io`] otherwise. A file already at `path` is then unchanged.
pub fn write_safetensors(
    path: &Path,
    tensors: &[TensorRef],
    dtype: SaveDType,
    metadata: &[(&str, &str)],
) -> Result<(), FileError> {
    let unwritable = |name: &str, problem: String| FileError::Unwritable { name: name.into(), problem };
    let mut sorted: Vec<&TensorRef> = tensors.iter().collect();
    sorted.sort_by_key(|t| t.name);

    let strings: BTreeMap<&str, &str> = [("format", "pt")].into_iter().chain(metadata.iter().copied()).collect();
    let mut entries = BTreeMap::from([("__metadata__", HeaderEntry::Metadata(strings))]);
    let mut offset = 0;
    for t in &sorted {
        let elements = t.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if elements != Some(t.data.len()) {
            return Err(unwritable(t.name, format!("shape {:?} does not take {} elements", t.shape, t.data.len())));
        }
        if let Some(value) = convert::first_overflow(t.data, dtype) {
            return Err(unwritable(t.name, format!("{value} is too large for {}; write F32 instead", dtype.file())));
        }
        let end = offset + t.data.len() * dtype.file().bitsize() / 8;
        let info = RawInfo { dtype: dtype.file(), shape: t.shape.to_vec(), data_offsets: (offset, end) };
        if entries.insert(t.name, HeaderEntry::Tensor(info)).is_some() {
            return Err(unwritable(t.name, "the name is reserved or given twice".into()));
        }
        offset = end;
    }

    let mut header = serde_json::to_vec(&entries).map_err(|e| FileError::io("write", path, e.into()))?;
    // The format asks for tensor data that starts at a multiple of eight.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER_BYTES {
        return Err(unwritable("__metadata__", format!("the header would take {} bytes", header.len())));
    }
    atomic::write(path, |file| {
        let mut file = BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for t in &sorted {
            convert::write_le(t.data, dtype, |bytes| file.write_all(bytes))?;
        }
        file.flush()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Checkpoint;
    use super::super::safetensors::Header;
    use super::*;
    use std::fs;

    const W: TensorRef = TensorRef { name: "w", shape: &[2, 3], data: &[1.0, -2.0, 3.5, 0.0, 1e-3, 65000.0] };
    const B: TensorRef = TensorRef { name: "b", shape: &[], data: &[7.0] };

    fn temp() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        (dir, path)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (dir, path) = temp();
        write_safetensors(&path, &[W, B], SaveDType::F32, &[("step", "12")]).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["b", "w"]);
        let mut out = [0.0; 6];
        checkpoint.read_f32("w", &mut out).unwrap();
        assert_eq!(out, W.data);
        let header = Header::parse(&fs::read(&path).unwrap()).unwrap();
        assert_eq!((header.metadata["format"].as_str(), header.metadata["step"].as_str()), ("pt", "12"));
        assert_eq!(header.tensors["b"].range.start % 8, 0);
    }

    #[test]
    fn the_order_given_does_not_change_the_file() {
        let (_dir, path) = temp();
        write_safetensors(&path, &[W, B], SaveDType::F32, &[]).unwrap();
        let first = fs::read(&path).unwrap();
        write_safetensors(&path, &[B, W], SaveDType::F32, &[]).unwrap();
        assert_eq!(first, fs::read(&path).unwrap());
    }

    #[test]
    fn half_precision_files_are_half_the_size() {
        let nearest_bf16 = half::bf16::from_f32(1e-3).to_f32();
        let nearest_f16 = half::f16::from_f32(1e-3).to_f32();
        for (dtype, nearest) in [(SaveDType::Bf16, nearest_bf16), (SaveDType::F16, nearest_f16)] {
            let (dir, path) = temp();
            write_safetensors(&path, &[W], dtype, &[]).unwrap();
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            let mut out = [0.0; 6];
            checkpoint.read_f32("w", &mut out).unwrap();
            assert_eq!(out[..5], [1.0, -2.0, 3.5, 0.0, nearest]);
            assert_eq!(checkpoint.info("w").unwrap().dtype, dtype.file());
        }
    }

    #[test]
    fn bad_input_is_refused_and_the_old_file_stays() {
        let (dir, path) = temp();
        fs::write(&path, "old").unwrap();
        let refused = |tensors: &[TensorRef], dtype| {
            let error = write_safetensors(&path, tensors, dtype, &[]).unwrap_err().to_string();
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            error
        };
        assert!(refused(&[W, W], SaveDType::F32).contains("`w`: the name is reserved or given twice"));
        assert!(refused(&[TensorRef { name: "__metadata__", ..B }], SaveDType::F32).contains("reserved"));
        assert!(refused(&[TensorRef { shape: &[5], ..W }], SaveDType::F32).contains("[5] does not take 6"));
        let big = TensorRef { name: "big", shape: &[1], data: &[1e6] };
        assert!(refused(&[big], SaveDType::F16).contains("1000000 is too large for F16"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let (dir, _) = temp();
        let error = write_safetensors(&dir.path().join("gone/m.safetensors"), &[B], SaveDType::F32, &[]);
        assert!(matches!(error, Err(FileError::Io { action: "create", .. })));
    }
}
