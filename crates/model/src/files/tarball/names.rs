//! Which entry names are safe to create.

use std::path::{Component, Path, PathBuf};

/// Longest entry name and longest part of one, in bytes: what file systems hold.
const MAX_PATH_BYTES: usize = 1024;
const MAX_PART_BYTES: usize = 255;

/// The relative path that an entry's name stands for, without `.` parts; empty for the root itself. The error says what
/// is wrong, to stand after the entry's name.
pub(super) fn safe_path(name: &[u8]) -> Result<PathBuf, &'static str> {
    let name = std::str::from_utf8(name).map_err(|_| "has a name that is not UTF-8")?;
    if name.is_empty() {
        return Err("has no name");
    }
    if name.len() > MAX_PATH_BYTES {
        return Err("has a name over 1024 bytes");
    }
    // A backslash or colon is a separator or a drive on another system.
    if name.contains(|c: char| c.is_control() || matches!(c, '\\' | ':')) {
        return Err("has a control character, backslash or colon in its name");
    }
    let mut path = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) if part.len() > MAX_PART_BYTES => {
                return Err("has a file name over 255 bytes");
            }
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir => return Err("climbs out of the archive with `..`"),
            Component::RootDir | Component::Prefix(_) => return Err("has an absolute path"),
        }
    }
    Ok(path)
}

/// An entry's name fit for a message.
pub(super) fn shown(name: &[u8]) -> String {
    let cut = &name[..name.len().min(200)];
    String::from_utf8_lossy(cut).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_taken_without_dots() {
        for (name, path) in [
            ("config.json", "config.json"),
            ("./config.json", "config.json"),
            ("1_Pooling/./config.json", "1_Pooling/config.json"),
            ("code/", "code"),
            ("./", ""),
            ("..config", "..config"),
            ("modèle.json", "modèle.json"),
        ] {
            assert_eq!(safe_path(name.as_bytes()), Ok(PathBuf::from(path)));
        }
    }

    #[test]
    fn names_that_leave_or_confuse_are_refused() {
        for name in ["", "..", "../x", "a/../../x", "a/..", "/etc/passwd", "//x", "a\\..\\x", "C:x", "a\0b", "a\nb"] {
            assert!(safe_path(name.as_bytes()).is_err(), "{name:?}");
        }
        assert!(safe_path(b"caf\xe9").is_err());
        assert!(safe_path("x".repeat(256).as_bytes()).is_err());
        assert!(safe_path("x/".repeat(513).as_bytes()).is_err());
    }
}
