//! From what a user typed to a model directory.

use super::tarball::{self, ArchiveError, Limits};
use super::{FileError, hub, read_text};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What makes a directory a model.
pub(super) const CONFIG_FILE: &str = "config.json";

/// Longest `config.json` read.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// A directory with a model in it: `config.json`, weights, tokenizer.
#[derive(Debug)]
pub struct ModelDir {
    path: PathBuf,
    config: String,
    /// Holds the files of an unpacked archive; removed on drop.
    _unpacked: Option<TempDir>,
}

impl ModelDir {
    /// Finds the model that `spec` names:
    ///
    /// - a directory with a `config.json`,
    /// - a run directory, which has `model/config.json`,
    /// - a `.tar.gz` or `.tgz` with the model at its root or in its only directory; it is unpacked to a temporary
    ///   directory that lives as long as the returned value, within the default [`Limits`],
    /// - `hf:org/name` or `hf:org/name@revision`: the local Hugging Face cache, else a download into it.
    ///
    /// # Errors
    /// [`FileError::NotAModel`] says what was looked for; the others name the file and what is wrong with it.
    pub fn open(spec: &str) -> Result<Self, FileError> {
        Self::open_marked(spec, &[Path::new(CONFIG_FILE)])
    }

    /// As [`open`](Self::open), but a directory is also a model that has no `config.json` and has `script`
    /// (`code/inference.py`), which then knows what to do with its other files.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_code(spec: &str, script: &Path) -> Result<Self, FileError> {
        Self::open_marked(spec, &[Path::new(CONFIG_FILE), script])
    }

    fn open_marked(spec: &str, markers: &[&Path]) -> Result<Self, FileError> {
        if let Some(repo) = spec.strip_prefix("hf:") {
            return Self::in_dir(hub::fetch(repo)?, None);
        }
        let path = Path::new(spec);
        if path.is_dir() {
            let candidates = [path.to_owned(), path.join("model")];
            return match find(&candidates, markers) {
                Some(dir) => Self::in_dir(dir, None),
                None => Err(not_a_model(spec, found_none(&candidates, markers))),
            };
        }
        if !path.exists() {
            return Err(not_a_model(
                spec,
                "there is no such file or directory; give a model directory, a run directory, a .tar.gz, or \
                 hf:org/name",
            ));
        }
        if spec.ends_with(".tar.gz") || spec.ends_with(".tgz") {
            return Self::unpacked(spec, path, markers, &Limits::default());
        }
        Err(not_a_model(spec, "it is a file and its name does not end in .tar.gz or .tgz"))
    }

    /// The directory with `config.json` in it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of `config.json`; empty where there is none.
    pub fn config_text(&self) -> &str {
        &self.config
    }

    fn in_dir(path: PathBuf, unpacked: Option<TempDir>) -> Result<Self, FileError> {
        let file = path.join(CONFIG_FILE);
        let config = if file.is_file() { read_text(&file, MAX_CONFIG_BYTES)? } else { String::new() };
        Ok(Self { path, config, _unpacked: unpacked })
    }

    fn unpacked(spec: &str, archive: &Path, markers: &[&Path], limits: &Limits) -> Result<Self, FileError> {
        let failed = |cause| FileError::Archive { path: archive.into(), cause };
        let file = File::open(archive).map_err(|e| FileError::io("open", archive, e))?;
        let holder = tempfile::Builder::new().prefix("model-").tempdir();
        let holder = holder.map_err(|e| failed(ArchiveError::io("create", &std::env::temp_dir(), e)))?;
        let root = holder.path().join("model");
        tarball::unpack(file, &root, limits).map_err(failed)?;
        let mut candidates = vec![root.clone()];
        candidates.extend(only_dir(&root));
        match find(&candidates, markers) {
            Some(dir) => Self::in_dir(dir, Some(holder)),
            None => {
                let names: Vec<String> = markers.iter().map(|marker| marker.display().to_string()).collect();
                let names = names.join(" nor ");
                let text = format!("the archive has no {names} at its root, nor in the one directory at its root");
                Err(not_a_model(spec, text))
            }
        }
    }
}

fn not_a_model(spec: &str, looked_for: impl Into<String>) -> FileError {
    FileError::NotAModel { spec: spec.into(), looked_for: looked_for.into() }
}

fn find(candidates: &[PathBuf], markers: &[&Path]) -> Option<PathBuf> {
    candidates.iter().find(|dir| markers.iter().any(|marker| dir.join(marker).is_file())).cloned()
}

fn found_none(candidates: &[PathBuf], markers: &[&Path]) -> String {
    let files = candidates.iter().flat_map(|dir| markers.iter().map(|marker| dir.join(marker)));
    let tried: Vec<_> = files.map(|file| format!("`{}`", file.display())).collect();
    format!("found neither {}", tried.join(" nor "))
}

/// The one directory in `root`, if there is exactly one; files beside it do not matter.
fn only_dir(root: &Path) -> Option<PathBuf> {
    let mut dirs = fs::read_dir(root).ok()?.flatten().map(|e| e.path()).filter(|p| p.is_dir());
    let first = dirs.next()?;
    dirs.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn open(path: &Path) -> Result<ModelDir, FileError> {
        ModelDir::open(path.to_str().unwrap())
    }

    #[test]
    fn a_model_directory_and_a_run_directory_open() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("model/config.json"), "{\"a\":1}");
        for spec in [dir.path().to_owned(), dir.path().join("model")] {
            let model = open(&spec).unwrap();
            assert_eq!(model.path(), dir.path().join("model"));
            assert_eq!(model.config_text(), "{\"a\":1}");
        }
    }

    #[test]
    fn a_tarball_opens_at_its_root_or_one_level_down_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("m/config.json"), "{}");
        let root = dir.path().join("root.tar.gz");
        tarball::pack(&dir.path().join("m"), &root).unwrap();
        let unpacked = {
            let model = open(&root).unwrap();
            assert_eq!(model.config_text(), "{}");
            model.path().to_owned()
        };
        assert!(!unpacked.exists());

        let nested = dir.path().join("nested.tgz");
        tarball::tests::archive_of(&nested, &[("deep/config.json", "{\"n\":2}")]);
        assert_eq!(open(&nested).unwrap().config_text(), "{\"n\":2}");
    }

    #[test]
    fn what_was_looked_for_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("config.json") && error.contains("model/config.json"), "{error}");
        let error = open(&dir.path().join("gone")).unwrap_err().to_string();
        assert!(error.contains("no such file") && error.contains("hf:org/name"), "{error}");
        write(&dir.path().join("weights.zip"), "x");
        let error = open(&dir.path().join("weights.zip")).unwrap_err().to_string();
        assert!(error.contains(".tar.gz"), "{error}");
        let two = dir.path().join("two.tgz");
        tarball::tests::archive_of(&two, &[("a/config.json", "{}"), ("b/config.json", "{}")]);
        assert!(open(&two).unwrap_err().to_string().contains("no config.json at its root"));
    }

    #[test]
    fn a_config_that_is_not_text_names_the_byte() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), b"{\"a\":\xff}").unwrap();
        assert!(open(dir.path()).unwrap_err().to_string().contains("offset 5"));
    }

    #[test]
    fn a_damaged_tarball_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broken.tar.gz");
        fs::write(&path, "no gzip at all").unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("broken.tar.gz") && error.contains("gzip"), "{error}");
    }
}
