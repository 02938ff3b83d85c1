//! A header that is accepted describes ranges inside the file, in the sizes its shapes say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::files::safetensors::Header;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = Header::parse(bytes) {
        for entry in header.tensors.values() {
            let elements: usize = entry.shape.iter().product();
            assert_eq!(bytes[entry.range.clone()].len() * 8, elements * entry.dtype.bitsize());
        }
    }
});
