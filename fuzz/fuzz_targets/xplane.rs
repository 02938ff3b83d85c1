//! Bytes from anywhere as an `xplane.pb`. An import ends with a profile that can be read, or with an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use profile::import::{Options, import};
use profile::{Host, Run};

fuzz_target!(|bytes: &[u8]| {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (path, out) = (dir.path().join("host.xplane.pb"), dir.path().join("out.profile"));
    std::fs::write(&path, bytes).expect("room for a file");
    if import(&[path], &out, &Options::default()).is_ok() {
        let profile = trace::Profile::open(&out).expect("an import is a profile");
        Run::load(&profile, None, Host::Operands).expect("an import is whole");
    }
});
