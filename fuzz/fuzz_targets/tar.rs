//! An archive is unpacked whole, or refused with nothing left behind.
//!
//! Bytes that do not start like gzip are compressed first, so that the tar reader is reached without the fuzzer having
//! to make checksums.
#![no_main]

use flate2::Compression;
use flate2::bufread::GzEncoder;
use libfuzzer_sys::fuzz_target;
use model::files::tarball::{Limits, unpack};
use std::io::Read;

const LIMITS: Limits = Limits { entries: 50, total_bytes: 1 << 20, ratio: 200, ratio_free_bytes: 1 << 16 };

fuzz_target!(|bytes: &[u8]| {
    let dir = tempfile::tempdir().expect("the temporary directory can be written");
    let dest = dir.path().join("out");
    let result = if bytes.starts_with(&[0x1f, 0x8b]) {
        unpack(bytes, &dest, &LIMITS)
    } else {
        let mut archive = Vec::new();
        GzEncoder::new(bytes, Compression::fast()).read_to_end(&mut archive).expect("memory can be read");
        unpack(&archive[..], &dest, &LIMITS)
    };
    let left = std::fs::read_dir(dir.path()).expect("the directory is still there").count();
    assert_eq!(left, usize::from(result.is_ok()));
});
