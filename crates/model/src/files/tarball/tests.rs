use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Writes a `.tar.gz` with these files.
pub(in crate::files) fn archive_of(path: &Path, files: &[(&str, &str)]) {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, text) in files {
        add(&mut tar, name, tar::EntryType::Regular, text.as_bytes());
    }
    fs::write(path, gzip(&tar.into_inner().unwrap())).unwrap();
}

/// Appends an entry whose name is written as it is, unsafe or not.
fn add(tar: &mut tar::Builder<Vec<u8>>, name: &str, kind: tar::EntryType, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    let field = &mut header.as_old_mut().name;
    field[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o777);
    if matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link) {
        header.set_link_name("/etc/passwd").unwrap();
    }
    header.set_cksum();
    tar.append(&header, data).unwrap();
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::default());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn one(name: &str, kind: tar::EntryType) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "config.json", tar::EntryType::Regular, b"{}");
    add(&mut tar, name, kind, b"");
    gzip(&tar.into_inner().unwrap())
}

/// Unpacks into a fresh place; on failure checks that nothing is left.
fn try_unpack(archive: &[u8], limits: &Limits) -> Result<tempfile::TempDir, ArchiveError> {
    let dir = tempfile::tempdir().unwrap();
    match unpack(archive, &dir.path().join("out"), limits) {
        Ok(()) => Ok(dir),
        Err(e) => {
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was left behind");
            Err(e)
        }
    }
}

fn refusal(archive: &[u8]) -> String {
    try_unpack(archive, &Limits::default()).unwrap_err().to_string()
}

fn model_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("config.json", "{}"),
        ("model.safetensors", "weights"),
        ("vocab.txt", "[PAD]\n"),
        ("1_Pooling/config.json", "{\"p\":1}"),
        ("code/inference.py", "pass"),
        (".model.safetensors.a1b2.tmp", "half"),
        (".cache/junk", "junk"),
    ] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[test]
fn what_is_packed_is_unpacked() {
    let model = model_dir();
    let out = tempfile::tempdir().unwrap();
    let archive = out.path().join("model.tar.gz");
    pack(model.path(), &archive).unwrap();
    let dest = out.path().join("unpacked");
    unpack(fs::File::open(&archive).unwrap(), &dest, &Limits::default()).unwrap();
    assert_eq!(fs::read_to_string(dest.join("1_Pooling/config.json")).unwrap(), "{\"p\":1}");
    assert_eq!(fs::read_to_string(dest.join("code/inference.py")).unwrap(), "pass");
    assert_eq!(fs::read_dir(&dest).unwrap().count(), 5, "names that start with a dot stay out");
}

#[test]
fn the_same_files_give_the_same_bytes_wherever_and_whenever() {
    let (a, b) = (model_dir(), model_dir());
    let file = fs::File::options().write(true).open(b.path().join("config.json")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let out = tempfile::tempdir().unwrap();
    let bytes = |dir: &Path, name: &str| {
        let path = out.path().join(name);
        pack(dir, &path).unwrap();
        fs::read(path).unwrap()
    };
    assert_eq!(bytes(a.path(), "a.tar.gz"), bytes(b.path(), "b.tar.gz"));
}

#[test]
fn headers_carry_no_trace_of_the_machine() {
    let model = model_dir();
    let out = model.path().join("model.tar.gz");
    pack(model.path(), &out).unwrap();
    pack(model.path(), &out).unwrap();
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&out).unwrap()));
    let mut names = Vec::new();
    for entry in tar.entries().unwrap() {
        let entry = entry.unwrap();
        let h = entry.header();
        assert_eq!((h.mtime().unwrap(), h.uid().unwrap(), h.gid().unwrap(), h.mode().unwrap()), (0, 0, 0, 0o644));
        names.push(entry.path().unwrap().display().to_string());
    }
    // Sorted, and the archive of the first run is not packed into the second.
    assert_eq!(names, ["1_Pooling/config.json", "code/inference.py", "config.json", "model.safetensors", "vocab.txt"]);
}

#[test]
fn a_directory_without_a_config_is_not_packed() {
    let dir = tempfile::tempdir().unwrap();
    let error = pack(dir.path(), &dir.path().join("m.tar.gz")).unwrap_err().to_string();
    assert!(error.contains("no config.json"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_to_files_are_packed_as_files_and_links_to_directories_refused() {
    let model = model_dir();
    let blob = tempfile::NamedTempFile::new().unwrap();
    fs::write(blob.path(), "blob").unwrap();
    std::os::unix::fs::symlink(blob.path(), model.path().join("merges.txt")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let archive = out.path().join("m.tar.gz");
    pack(model.path(), &archive).unwrap();
    unpack(fs::File::open(&archive).unwrap(), &out.path().join("m"), &Limits::default()).unwrap();
    assert_eq!(fs::read_to_string(out.path().join("m/merges.txt")).unwrap(), "blob");

    std::os::unix::fs::symlink("/", model.path().join("everything")).unwrap();
    let error = pack(model.path(), &archive).unwrap_err().to_string();
    assert!(error.contains("\"everything\" is not a regular file"), "{error}");
}

#[test]
fn entries_that_would_leave_the_destination_are_refused_by_name() {
    for name in ["../evil", "a/../../evil", "/etc/evil", "a\\..\\evil"] {
        let error = refusal(&one(name, tar::EntryType::Regular));
        assert!(error.contains(&format!("{name:?}")), "{error}");
    }
}

#[test]
fn links_devices_and_fifos_are_refused_by_name() {
    use tar::EntryType as T;
    for (kind, word) in
        [(T::Symlink, "link"), (T::Link, "link"), (T::Char, "device"), (T::Block, "device"), (T::Fifo, "fifo")]
    {
        let error = refusal(&one("sly", kind));
        assert!(error.contains("\"sly\"") && error.contains(word), "{error}");
    }
    refusal(&one("sparse", T::GNUSparse));
}

#[test]
fn a_name_given_twice_is_refused() {
    assert!(refusal(&one("config.json", tar::EntryType::Regular)).contains("\"config.json\" is in the archive twice"));
    assert!(refusal(&one("./config.json", tar::EntryType::Regular)).contains("twice"));
    assert!(try_unpack(&one("./", tar::EntryType::Directory), &Limits::default()).is_ok());
}

#[test]
fn a_file_used_as_a_directory_is_an_error() {
    assert!(refusal(&one("config.json/x", tar::EntryType::Regular)).contains("config.json"));
}

#[test]
fn long_names_from_the_extension_header_are_checked_too() {
    let mut tar = tar::Builder::new(Vec::new());
    let long = format!("{}/f", "d".repeat(200));
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    tar.append_data(&mut header, &long, &b""[..]).unwrap();
    let dir = try_unpack(&gzip(&tar.into_inner().unwrap()), &Limits::default()).unwrap();
    assert!(dir.path().join("out").join(long).is_file());

    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "././@LongLink", tar::EntryType::GNULongName, &[b'x'; 2000]);
    add(&mut tar, "x", tar::EntryType::Regular, b"");
    assert!(refusal(&gzip(&tar.into_inner().unwrap())).contains("over 1024 bytes"));

    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "././@LongLink", tar::EntryType::GNULongName, &vec![b'x'; 2 << 20]);
    assert!(refusal(&gzip(&tar.into_inner().unwrap())).contains("headers of one entry take more than"));
}

#[test]
fn limits_hold() {
    let archive = one("b", tar::EntryType::Regular);
    let limits = Limits { entries: 1, ..Limits::default() };
    assert!(try_unpack(&archive, &limits).unwrap_err().to_string().contains("more than 1 entries"));
    let limits = Limits { total_bytes: 1000, ..Limits::default() };
    assert!(try_unpack(&archive, &limits).unwrap_err().to_string().contains("more than 1000 bytes"));
}

#[test]
fn a_bomb_is_stopped_early() {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "zeros", tar::EntryType::Regular, &vec![0; 8 << 20]);
    let archive = gzip(&tar.into_inner().unwrap());
    let limits = Limits { ratio_free_bytes: 1 << 20, ..Limits::default() };
    let error = try_unpack(&archive, &limits).unwrap_err();
    assert!(matches!(error, ArchiveError::Bomb { unpacked, .. } if unpacked < 2 << 20), "{error}");
    assert!(try_unpack(&archive, &Limits::default()).is_ok());
}

#[test]
fn a_truncated_archive_is_refused_wherever_it_is_cut() {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "config.json", tar::EntryType::Regular, b"{}");
    let noise: Vec<u8> = (0..3000u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    add(&mut tar, "w", tar::EntryType::Regular, &noise);
    let plain = tar.into_inner().unwrap();
    let archive = gzip(&plain);
    for cut in (0..archive.len()).step_by(37) {
        refusal(&archive[..cut]);
    }
    // Cut inside the tar layer, with a gzip layer that is whole.
    let error = refusal(&gzip(&plain[..2500]));
    assert!(error.contains("\"w\" has 964 of its 3000 bytes"), "{error}");
}

#[test]
fn what_follows_the_end_is_looked_at() {
    let mut archive = one("b", tar::EntryType::Regular);
    archive.extend_from_slice(b"garbage");
    assert!(refusal(&archive).contains("gzip"));
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "config.json", tar::EntryType::Regular, b"{}");
    let mut plain = tar.into_inner().unwrap();
    plain.extend_from_slice(&[0; 8192]);
    assert!(try_unpack(&gzip(&plain), &Limits::default()).is_ok());
    plain.extend_from_slice(b"more");
    assert!(refusal(&gzip(&plain)).contains("follows the end"));
}

#[test]
fn several_gzip_members_are_one_archive() {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "config.json", tar::EntryType::Regular, b"{}");
    let plain = tar.into_inner().unwrap();
    let (a, b) = plain.split_at(700);
    let dir = try_unpack(&[gzip(a), gzip(b)].concat(), &Limits::default()).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("out/config.json")).unwrap(), "{}");
}

#[test]
fn a_used_destination_is_left_alone() {
    let dir = model_dir();
    let error = unpack(&one("b", tar::EntryType::Regular)[..], dir.path(), &Limits::default()).unwrap_err();
    assert!(matches!(error, ArchiveError::Occupied(_)));
    assert_eq!(fs::read_to_string(dir.path().join("config.json")).unwrap(), "{}");
}

#[cfg(unix)]
#[test]
fn modes_in_the_archive_are_ignored() {
    use std::os::unix::fs::PermissionsExt;
    let dir = try_unpack(&one("b", tar::EntryType::Regular), &Limits::default()).unwrap();
    let mode = fs::metadata(dir.path().join("out/b")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0, "{mode:o}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_archives_are_errors_and_leave_nothing(at in 0usize..4096, byte: u8, cut in 0usize..8192) {
        let mut tar = tar::Builder::new(Vec::new());
        add(&mut tar, "config.json", tar::EntryType::Regular, b"{\"a\":1}");
        add(&mut tar, "1_Pooling/", tar::EntryType::Directory, b"");
        let mut plain = tar.into_inner().unwrap();
        let n = plain.len();
        plain[at % n] = byte;
        plain.truncate(if cut < 4096 { n } else { cut % n });
        // Damage below the checksum of gzip, so that the tar reader sees it.
        let _ = try_unpack(&gzip(&plain), &Limits::default());
    }
}
