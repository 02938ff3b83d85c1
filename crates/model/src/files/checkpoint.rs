//! The weights of a model directory, whatever their format.

use super::index::ShardIndex;
use super::pickle::{PickleError, TorchFile};
use super::safetensors::Header;
use super::{FileDType, FileError, convert};
use memmap2::Mmap;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Weights files in the order they are looked for; the flag says whether the file is an index of shards.
pub(super) const WEIGHTS_FILES: [(&str, bool); 4] = [
    ("model.safetensors", false),
    ("model.safetensors.index.json", true),
    ("pytorch_model.bin", false),
    ("pytorch_model.bin.index.json", true),
];

/// What is known of a tensor before its elements are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type in the file.
    pub dtype: FileDType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The file it lies in.
    pub file: PathBuf,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An open set of weights files, memory-mapped; all headers are validated, elements are converted when read.
///
/// The files must not be shortened while the checkpoint is open: the system then ends the process (SIGBUS).
/// Replacing them by rename, as everything in this library does, is safe.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<WeightsFile>,
    /// Tensor name to its info and the position of its file in `files`.
    tensors: BTreeMap<String, (TensorInfo, usize)>,
}

impl Checkpoint {
    /// Opens the weights in `dir`: `model.safetensors`, else `model.safetensors.index.json` and its shards, else
    /// `pytorch_model.bin`, else `pytorch_model.bin.index.json`.
    ///
    /// # Errors
    /// [`FileError`] naming the file and what is wrong in it; a shard that is missing; a tensor that the index
    /// promises and its shard lacks.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        let (name, sharded) = WEIGHTS_FILES
            .into_iter()
            .find(|(name, _)| dir.join(name).exists())
            .ok_or_else(|| FileError::NoWeights { dir: dir.into() })?;
        let path = dir.join(name);
        let mut checkpoint = Self { dir: dir.into(), files: Vec::new(), tensors: BTreeMap::new() };
        if sharded {
            checkpoint.add_shards(&path)?;
        } else {
            checkpoint.add_file(&path)?;
        }
        Ok(checkpoint)
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Type, shape and file of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|(info, _)| info)
    }

    /// The weights files, in the order they were opened.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }

    /// Reads a tensor as row-major `f32`. F64 is rounded; F16 and BF16 are exact.
    ///
    /// # Errors
    /// [`FileError::UnknownTensor`]; [`FileError::NotFloat`] for integers, booleans and 8-bit floats;
    /// [`FileError::WrongLength`] when `out` has another number of elements; [`FileError::Pickle`] when the tensor's
    /// bytes in a `pytorch_model.bin` are damaged.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<(), FileError> {
        let (info, file) = self
            .tensors
            .get(name)
            .ok_or_else(|| FileError::UnknownTensor { name: name.into(), dir: self.dir.clone() })?;
        if !matches!(info.dtype, FileDType::F32 | FileDType::F64 | FileDType::F16 | FileDType::BF16) {
            return Err(FileError::NotFloat { name: name.into(), dtype: info.dtype, file: info.file.clone() });
        }
        if info.elements() != out.len() {
            return Err(FileError::WrongLength {
                name: name.into(),
                file: info.file.clone(),
                stored: info.elements(),
                wanted: out.len(),
            });
        }
        let bytes = self.files[*file].bytes(name)?;
        convert::read_f32(info.dtype, &bytes, out);
        Ok(())
    }

    /// Opens one file and enters those of its tensors that no earlier file holds.
    fn add_file(&mut self, path: &Path) -> Result<(), FileError> {
        let file = WeightsFile::open(path)?;
        let position = self.files.len();
        for (name, dtype, shape) in file.listing() {
            let info = TensorInfo { dtype, shape, file: path.into() };
            self.tensors.entry(name.into()).or_insert((info, position));
        }
        self.files.push(file);
        Ok(())
    }

    /// Opens the shards an index names. The index decides where a tensor lies; tensors of a shard that the index does
    /// not mention are listed too, so that they are reported and not lost.
    fn add_shards(&mut self, index_path: &Path) -> Result<(), FileError> {
        let index = ShardIndex::open(index_path)?;
        let wrong = |problem| FileError::Index { path: index_path.into(), problem };
        for shard in index.shards() {
            let path = self.dir.join(shard);
            if !path.is_file() {
                return Err(wrong(format!("shard `{shard}` is missing; download or copy it into the same directory")));
            }
            self.add_file(&path)?;
        }
        for (name, shard) in &index.weight_map {
            let path = self.dir.join(shard);
            let entry = self.files.iter().enumerate().find(|(_, f)| f.path == path).and_then(|(position, file)| {
                let (_, dtype, shape) = file.listing().find(|(n, ..)| n == name)?;
                Some((TensorInfo { dtype, shape, file: path.clone() }, position))
            });
            let entry = entry.ok_or_else(|| wrong(format!("tensor `{name}` is not in its shard `{shard}`")))?;
            self.tensors.insert(name.clone(), entry);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct WeightsFile {
    path: PathBuf,
    map: Mmap,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Safetensors(Header),
    Torch(TorchFile),
}

impl WeightsFile {
    fn open(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(|e| FileError::io("open", path, e))?;
        // SAFETY: the map is only read, as plain bytes. Another process could change the file under it; every parser
        // here copies what it validates or checks bounds on each read, so changed bytes give wrong numbers, no
        // out-of-bounds access. Shortening the file is excluded by the contract of `Checkpoint`.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| FileError::io("map", path, e))?;
        let content = if path.extension().is_some_and(|e| e == "safetensors") {
            Content::Safetensors(
                Header::parse(&map).map_err(|cause| FileError::Safetensors { path: path.into(), cause })?,
            )
        } else {
            Content::Torch(TorchFile::parse(&map).map_err(|cause| FileError::Pickle { path: path.into(), cause })?)
        };
        Ok(Self { path: path.into(), map, content })
    }

    /// Name, element type and shape of each tensor.
    fn listing(&self) -> Box<dyn Iterator<Item = (&str, FileDType, Vec<usize>)> + '_> {
        match &self.content {
            Content::Safetensors(header) => {
                Box::new(header.tensors.iter().map(|(name, t)| (name.as_str(), t.dtype, t.shape.clone())))
            }
            Content::Torch(file) => {
                Box::new(file.tensors.iter().map(|(name, t)| (name.as_str(), t.dtype, t.shape.clone())))
            }
        }
    }

    /// The row-major bytes of a tensor.
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, FileError> {
        let damaged = |cause| FileError::Pickle { path: self.path.clone(), cause };
        match &self.content {
            Content::Safetensors(header) => {
                let range = header.tensors.get(name).map(|t| t.range.clone()).unwrap_or_default();
                Ok(Cow::Borrowed(&self.map[range]))
            }
            Content::Torch(file) => {
                let tensor = file.tensors.get(name).ok_or(PickleError::NoTensors).map_err(damaged)?;
                file.read(&self.map, name, tensor).map_err(damaged)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SaveDType, TensorRef, write_safetensors};
    use super::*;
    use std::fs;

    fn save(path: &Path, tensors: &[(&str, &[f32])]) {
        let shapes: Vec<_> = tensors.iter().map(|(_, data)| [data.len()]).collect();
        let refs: Vec<_> =
            tensors.iter().zip(&shapes).map(|((name, data), shape)| TensorRef { name, shape, data }).collect();
        write_safetensors(path, &refs, SaveDType::F32, &[]).unwrap();
    }

    fn sharded(index: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        save(&dir.path().join("1.safetensors"), &[("a", &[1.0, 2.0]), ("shared", &[1.0])]);
        save(&dir.path().join("2.safetensors"), &[("b", &[3.0]), ("shared", &[2.0]), ("extra", &[4.0])]);
        fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        dir
    }

    fn value(checkpoint: &Checkpoint, name: &str) -> f32 {
        let mut out = vec![0.0; checkpoint.info(name).unwrap().elements()];
        checkpoint.read_f32(name, &mut out).unwrap();
        out[0]
    }

    #[test]
    fn a_checkpoint_can_cross_threads() {
        fn assert_send_sync<T: Send + Sync>() {}
        assert_send_sync::<Checkpoint>();
    }

    #[test]
    fn shards_are_read_where_the_index_says() {
        let dir = sharded(r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors","shared":"2.safetensors"}}"#);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b", "extra", "shared"]);
        assert_eq!((value(&checkpoint, "a"), value(&checkpoint, "b")), (1.0, 3.0));
        assert_eq!(value(&checkpoint, "shared"), 2.0);
        assert_eq!(checkpoint.info("b").unwrap().file, dir.path().join("2.safetensors"));
        assert_eq!(checkpoint.files().count(), 2);
    }

    #[test]
    fn an_index_that_does_not_fit_its_shards_is_refused() {
        let open = |index| Checkpoint::open(sharded(index).path()).unwrap_err().to_string();
        assert!(open(r#"{"weight_map":{"a":"3.safetensors"}}"#).contains("shard `3.safetensors` is missing"));
        let error = open(r#"{"weight_map":{"a":"2.safetensors"}}"#);
        assert!(error.contains("index.json") && error.contains("tensor `a` is not in its shard"), "{error}");
    }

    #[test]
    fn a_whole_file_is_preferred_to_shards() {
        let dir = sharded("not even JSON");
        save(&dir.path().join("model.safetensors"), &[("w", &[1.0])]);
        assert_eq!(Checkpoint::open(dir.path()).unwrap().names().collect::<Vec<_>>(), ["w"]);
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("model.safetensors") && error.contains("pytorch_model.bin"), "{error}");
        fs::write(dir.path().join("pytorch_model.bin"), "nothing of the kind").unwrap();
        let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("pytorch_model.bin") && error.contains("torch archive"), "{error}");
        for content in ["", "\x05"] {
            fs::write(dir.path().join("model.safetensors"), content).unwrap();
            let error = Checkpoint::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("model.safetensors") && error.contains("too short"), "{error}");
        }
    }

    #[test]
    fn reads_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let json = r#"{"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
        let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &[0; 12]].concat();
        fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let error = |name, out: &mut [f32]| checkpoint.read_f32(name, out).unwrap_err().to_string();
        assert!(error("gone", &mut []).contains("no tensor `gone`"));
        assert!(error("ids", &mut [0.0]).contains("`ids`") && error("ids", &mut [0.0]).contains("I64"));
        assert!(error("w", &mut [0.0; 2]).contains("has 1 elements, 2 were asked for"));
    }
}
