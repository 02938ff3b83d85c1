//! A torch file that is accepted gives every tensor as many bytes as its shape says, or a named error.
//!
//! Bytes that do not start like a zip file are taken as the pickle of an archive, so that the interpreter is reached
//! without the fuzzer having to make checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::files::pickle::TorchFile;

fuzz_target!(|bytes: &[u8]| { if bytes.starts_with(b"PK") { read_all(bytes) } else { read_all(&archive(bytes)) } });

fn read_all(file: &[u8]) {
    if let Ok(parsed) = TorchFile::parse(file) {
        for (name, tensor) in &parsed.tensors {
            if let Ok(bytes) = parsed.read(file, name, tensor) {
                let elements: usize = tensor.shape.iter().product();
                assert_eq!(bytes.len() * 8, elements * tensor.dtype.bitsize());
            }
        }
    }
}

/// A zip archive with `pickle` as its `data.pkl` and one storage of 64 zeros.
fn archive(pickle: &[u8]) -> Vec<u8> {
    use std::io::{Cursor, Write};
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("m/data.pkl", pickle), ("m/data/0", &[0; 64])] {
        zip.start_file(name, options).expect("the name is new");
        zip.write_all(bytes).expect("memory can be written");
    }
    zip.finish().expect("memory can be written").into_inner()
}
