//! What a model takes in memory, told from its files, and what a process can still have.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::InferenceDtype;
use model::files::{Checkpoint, FileError};

/// What the engine takes for each byte of weights: the weights, rearranged for its kernels, and room to work in.
const ENGINE_PER_BYTE: f64 = 1.3;
/// A directory with more entries than this is no model's; what is beyond them is not counted.
const MOST_ENTRIES: usize = 100_000;

/// Bytes that the engine needs for the weights in `dir`: those of all tensors in the type that is asked for, and 30 % more.
/// Only headers are read.
///
/// # Errors
/// As [`Checkpoint::open`].
pub fn of_engine(dir: &Path, dtype: InferenceDtype) -> Result<u64, FileError> {
    let checkpoint = Checkpoint::open(dir)?;
    let bytes_of_one: u64 = match dtype {
        InferenceDtype::F32 => 4,
        // Of int8 the tables are in bf16, and only the matrices are smaller.
        InferenceDtype::Bf16 | InferenceDtype::Int8 => 2,
    };
    let tensors = checkpoint.names().filter_map(|name| checkpoint.info(name));
    let elements = tensors.fold(0u64, |sum, tensor| sum.saturating_add(tensor.elements() as u64));
    Ok((elements.saturating_mul(bytes_of_one) as f64 * ENGINE_PER_BYTE) as u64)
}

/// Bytes that Python handlers need for a model directory: all of its files, in each worker.
pub fn of_handler(dir: &Path, workers: usize) -> u64 {
    size_of_files(dir).saturating_mul(workers as u64)
}

/// Bytes of all files below a path. Links are followed, and nothing is counted twice.
fn size_of_files(path: &Path) -> u64 {
    let mut bytes = 0u64;
    let mut seen = HashSet::new();
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if seen.len() >= MOST_ENTRIES || !seen.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.take(MOST_ENTRIES).map(|entry| entry.path()));
        } else {
            bytes = bytes.saturating_add(metadata.len());
        }
    }
    bytes
}

/// Bytes that this process can still have: what the system calls available, within the limits of its control groups;
/// everything where neither says.
pub fn available() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    of_system().min(of_groups(&groups, Path::new("/sys/fs/cgroup")))
}

fn of_system() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kibibytes.map_or(u64::MAX, |kibibytes| kibibytes.saturating_mul(1024))
}

/// The names of one version of control groups.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: pages of files that the system takes back when it needs them.
    cache: &'static str,
}

const V1: Files = Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file" };
const V2: Files = Files { limit: "memory.max", used: "memory.current", cache: "inactive_file" };

/// The least room in the groups that `/proc/self/cgroup` lists, and in those above them.
fn of_groups(groups: &str, root: &Path) -> u64 {
    let mut room = u64::MAX;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (mount, files) = match controllers {
            "" => (root.to_owned(), &V2),
            _ if controllers.split(',').any(|controller| controller == "memory") => (root.join("memory"), &V1),
            _ => continue,
        };
        // In a container the path may be that outside of it, and the mount its own group: then only the top is there.
        let mut dir: PathBuf = mount.join(group.trim_start_matches('/'));
        while dir.starts_with(&mount) {
            room = room.min(of_group(&dir, files).unwrap_or(u64::MAX));
            if !dir.pop() {
                break;
            }
        }
    }
    room
}

/// Nothing where there is no limit.
fn of_group(dir: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(files.cache)?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_through_links_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::create_dir_all(model.join("a")).unwrap();
        std::fs::write(dir.path().join("blob"), [0; 100]).unwrap();
        std::fs::write(model.join("a/x"), [0; 10]).unwrap();
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, model.join(name)).unwrap();
        link(&dir.path().join("blob"), "weights");
        link(&dir.path().join("blob"), "the-same");
        link(&model, "a/loop");
        link(&dir.path().join("gone"), "nothing");
        assert_eq!(size_of_files(&model), 110);
        assert_eq!(of_handler(&model, 3), 330);
    }

    #[test]
    fn the_engine_needs_its_own_type_for_every_element() {
        let dir = tempfile::tempdir().unwrap();
        let data = vec![0.0; 1000];
        let tensor = model::files::TensorRef { name: "a", shape: &[10, 100], data: &data };
        let file = dir.path().join("model.safetensors");
        model::files::write_safetensors(&file, &[tensor], model::files::SaveDType::F32, &[]).unwrap();
        assert_eq!(of_engine(dir.path(), InferenceDtype::F32).unwrap(), 5200);
        assert_eq!(of_engine(dir.path(), InferenceDtype::Bf16).unwrap(), 2600);
        assert!(of_engine(&dir.path().join("gone"), InferenceDtype::F32).is_err());
    }

    #[test]
    fn control_groups_and_those_above_them_limit_what_is_available() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let room = |groups: &str| of_groups(groups, dir.path());
        assert_eq!(room("0::/a/b\n"), u64::MAX);
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 1\ninactive_file 200\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "5\n");
        assert_eq!(room("0::/a/b\n"), 500);
        write("memory/memory.limit_in_bytes", "300");
        write("memory/memory.usage_in_bytes", "100");
        assert_eq!(room("4:cpu,memory:/elsewhere\n1:cpu:/a\n0::/a/b\n"), 200);
        assert!(available() > 0);
    }
}
