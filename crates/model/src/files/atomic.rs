//! Replacing a file in one step.

use super::FileError;
use std::fs::File;
use std::io;
use std::path::Path;

/// Writes `path` so that it holds either its old content or all of the new, also after a crash.
///
/// `fill` receives an empty file with a temporary name in the same directory (`.NAME.XXXXXX.tmp`, which packing
/// skips). When it succeeds the file is fsynced, renamed over `path`, and the directory is fsynced; when anything
/// fails the temporary file is removed and `path` is as it was.
///
/// # Errors
/// [`FileError::Io`] naming `path` and the step that failed.
pub fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), FileError> {
    let failed = |action| move |cause| FileError::io(action, path, cause);
    let name = path
        .file_name()
        .ok_or_else(|| failed("create")(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name")))?;
    let dir = parent_of(path);
    let mut builder = tempfile::Builder::new();
    let prefix = format!(".{}.", name.to_string_lossy());
    builder.prefix(&prefix).suffix(".tmp");
    #[cfg(unix)]
    let builder = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(dir).map_err(failed("create"))?;
    fill(file.as_file_mut()).map_err(failed("write"))?;
    file.as_file().sync_all().map_err(failed("sync"))?;
    file.persist(path).map_err(|e| failed("rename the finished file to")(e.error))?;
    sync_dir(dir).map_err(failed("sync the directory of"))
}

/// The directory `path` lies in; `.` for a bare name.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Makes a rename in `dir` durable. Directories cannot be opened for this on Windows, where renames are journalled.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    #[test]
    fn replaces_the_file_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest.json");
        fs::write(&path, "old").unwrap();
        write(&path, |f| f.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_while_writing_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest.json");
        fs::write(&path, "old").unwrap();
        let error = write(&path, |f| {
            f.write_all(b"half of the ne")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        })
        .unwrap_err();
        assert!(error.to_string().contains("cannot write") && error.to_string().contains("manifest.json"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone/manifest.json");
        let error = write(&path, |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("cannot create") && error.contains("gone/manifest.json"), "{error}");
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        assert!(write(Path::new("/"), |_| Ok(())).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn the_file_gets_ordinary_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write(&path, |_| Ok(())).unwrap();
        fs::write(dir.path().join("g"), "").unwrap();
        let mode = |name| fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode("f"), mode("g"));
    }
}
