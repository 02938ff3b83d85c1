//! Whatever a body holds, reading it fails as the client's mistake or not at all.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (json, bytes) = input;
    for status in serve::http::read_everywhere(bytes, usize::from(json)) {
        assert!((400..500).contains(&status), "{status}");
    }
});
