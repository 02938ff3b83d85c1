use super::*;
use proptest::prelude::*;
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Emits pickle instructions, named as in CPython's `pickletools`.
#[derive(Clone)]
struct Pickle(Vec<u8>);

impl Pickle {
    /// A state dictionary, still open.
    fn state_dict() -> Self {
        Self(b"\x80\x02".to_vec()).global("collections", "OrderedDict").op(b")R(")
    }

    fn op(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn global(self, module: &str, name: &str) -> Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    fn text(self, text: &str) -> Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    fn int(self, n: i32) -> Self {
        self.op(b"J").op(&n.to_le_bytes())
    }

    fn tuple(self, sizes: &[i32]) -> Self {
        sizes.iter().fold(self.op(b"("), |p, &n| p.int(n)).op(b"t")
    }

    fn tensor(self, class: &str, key: &str, offset: i32, size: &[i32], stride: &[i32]) -> Self {
        self.global("torch._utils", "_rebuild_tensor_v2")
            .op(b"((")
            .text("storage")
            .global("torch", class)
            .text(key)
            .text("cpu")
            .int(6)
            .op(b"tQ")
            .int(offset)
            .tuple(size)
            .tuple(stride)
            .op(b"\x89")
            .global("collections", "OrderedDict")
            .op(b")RtR")
    }

    /// Closes a state dictionary.
    fn end(self) -> Vec<u8> {
        self.op(b"u.").0
    }
}

/// A torch archive with this pickle and these storages.
fn archive(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    archive_with(pickle, storages, CompressionMethod::Stored)
}

fn archive_with(pickle: &[u8], storages: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let options = SimpleFileOptions::default().compression_method(method);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let mut entry = |name: &str, bytes: &[u8]| {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    };
    entry("m/data.pkl", pickle);
    entry("m/byteorder", b"little");
    for (key, bytes) in storages {
        entry(&format!("m/data/{key}"), bytes);
    }
    entry("m/version", b"3\n");
    zip.finish().unwrap().into_inner()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

const SIX: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

fn read(file: &[u8], name: &str) -> Vec<u8> {
    let parsed = TorchFile::parse(file).unwrap();
    parsed.read(file, name, &parsed.tensors[name]).unwrap().into_owned()
}

fn refusal(file: &[u8]) -> String {
    TorchFile::parse(file).unwrap_err().to_string()
}

fn one_tensor() -> Vec<u8> {
    let pickle = Pickle::state_dict().text("w").tensor("FloatStorage", "0", 0, &[2, 3], &[3, 1]).end();
    archive(&pickle, &[("0", &floats(&SIX))])
}

#[test]
fn a_state_dictionary_is_read() {
    let file = one_tensor();
    let parsed = TorchFile::parse(&file).unwrap();
    let w = &parsed.tensors["w"];
    assert_eq!((w.dtype, w.shape.as_slice()), (FileDType::F32, &[2, 3][..]));
    let bytes = parsed.read(&file, "w", w).unwrap();
    assert!(matches!(bytes, Cow::Borrowed(_)), "a contiguous tensor is not copied");
    assert_eq!(*bytes, *floats(&SIX));
}

#[test]
fn views_offsets_and_tied_storages_are_followed() {
    let pickle = Pickle::state_dict()
        .text("rows")
        .tensor("FloatStorage", "0", 0, &[2, 3], &[3, 1])
        .text("transposed")
        .tensor("FloatStorage", "0", 0, &[3, 2], &[1, 3])
        .text("tail")
        .tensor("FloatStorage", "0", 4, &[2], &[1])
        .text("every_other")
        .tensor("FloatStorage", "0", 1, &[3], &[2])
        .text("scalar")
        .tensor("FloatStorage", "0", 5, &[], &[])
        .text("empty")
        .tensor("FloatStorage", "0", 0, &[0, 3], &[3, 1])
        .text("row_of_one")
        .tensor("FloatStorage", "0", 0, &[1, 3], &[99, 1])
        .end();
    let file = archive(&pickle, &[("0", &floats(&SIX))]);
    assert_eq!(read(&file, "rows"), floats(&SIX));
    assert_eq!(read(&file, "transposed"), floats(&[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    assert_eq!(read(&file, "tail"), floats(&[4.0, 5.0]));
    assert_eq!(read(&file, "every_other"), floats(&[1.0, 3.0, 5.0]));
    assert_eq!(read(&file, "scalar"), floats(&[5.0]));
    assert_eq!(read(&file, "empty"), b"");
    assert_eq!(read(&file, "row_of_one"), floats(&[0.0, 1.0, 2.0]));
}

#[test]
fn storage_classes_give_the_element_type() {
    for (class, dtype) in [
        ("DoubleStorage", FileDType::F64),
        ("HalfStorage", FileDType::F16),
        ("BFloat16Storage", FileDType::BF16),
        ("LongStorage", FileDType::I64),
        ("BoolStorage", FileDType::BOOL),
    ] {
        let pickle = Pickle::state_dict().text("w").tensor(class, "0", 0, &[3], &[1]).end();
        let file = archive(&pickle, &[("0", &[0; 24])]);
        assert_eq!(TorchFile::parse(&file).unwrap().tensors["w"].dtype, dtype);
    }
}

#[test]
fn parameters_metadata_and_other_values_do_not_disturb() {
    let pickle = Pickle::state_dict()
        .text("p")
        .global("torch._utils", "_rebuild_parameter")
        .op(b"(")
        .tensor("FloatStorage", "0", 0, &[6], &[1])
        .op(b"\x88")
        .global("collections", "OrderedDict")
        .op(b")RtR")
        .text("epoch")
        .int(3)
        // SETITEMS, then BUILD with {"_metadata": {}}.
        .op(b"u}")
        .text("_metadata")
        .op(b"}sb.")
        .0;
    let file = archive(&pickle, &[("0", &floats(&SIX))]);
    assert_eq!(TorchFile::parse(&file).unwrap().tensors.keys().collect::<Vec<_>>(), ["p"]);
    assert_eq!(read(&file, "p"), floats(&SIX));
}

#[test]
fn protocol_4_is_understood() {
    let short = |p: Pickle, s: &str| p.op(&[0x8c, s.len() as u8]).op(s.as_bytes()).op(b"\x94");
    let mut p = Pickle(b"\x80\x04\x95\0\0\0\0\0\0\0\0}(".to_vec());
    p = short(p, "w");
    p = short(short(p, "torch._utils"), "_rebuild_tensor_v2").op(b"\x93((");
    p = short(p, "storage");
    p = short(short(p, "torch"), "FloatStorage").op(b"\x93");
    p = short(short(p, "0"), "cpu").op(b"K\x06tQ\x8a\x00K\x06\x85K\x01\x85\x89N");
    let file = archive(&p.op(b"tRu.").0, &[("0", &floats(&SIX))]);
    assert_eq!(read(&file, "w"), floats(&SIX));
}

#[test]
fn deflated_archives_are_read() {
    let pickle = Pickle::state_dict().text("w").tensor("FloatStorage", "0", 2, &[3], &[1]).end();
    let file = archive_with(&pickle, &[("0", &floats(&SIX))], CompressionMethod::Deflated);
    assert_eq!(read(&file, "w"), floats(&[2.0, 3.0, 4.0]));
}

#[test]
fn a_foreign_global_is_refused_and_named() {
    let attack = Pickle(b"\x80\x02".to_vec()).global("posix", "system").text("echo owned").op(b"\x85R.").0;
    let error = refusal(&archive(&attack, &[]));
    assert!(error.contains("`posix.system`") && error.contains("convert it to safetensors"), "{error}");

    let by_stack = Pickle(b"\x80\x04".to_vec()).text("builtins").text("eval").op(b"\x93.").0;
    assert!(refusal(&archive(&by_stack, &[])).contains("`builtins.eval`"));
    // Near misses of allowed names.
    for (module, name) in [("torch", "load"), ("torch.storage", "FloatStorage"), ("collections", "OrderedDict.clear")] {
        let pickle = Pickle(b"\x80\x02".to_vec()).global(module, name).op(b".").0;
        assert!(refusal(&archive(&pickle, &[])).contains(&format!("`{module}.{name}`")));
    }
}

#[test]
fn instructions_that_make_objects_are_refused() {
    // INST, OBJ, NEWOBJ, NEWOBJ_EX, EXT1, PERSID.
    for opcode in [b'i', b'o', 0x81, 0x92, 0x82, b'P'] {
        let error = refusal(&archive(&[0x80, 2, opcode, b'.'], &[]));
        assert!(error.contains(&format!("0x{opcode:02x} at byte 2")), "{error}");
    }
}

#[test]
fn calls_and_attributes_are_limited_to_what_they_stand_for() {
    let build_on_tensor = Pickle::state_dict().text("w").tensor("FloatStorage", "0", 0, &[6], &[1]).op(b"}b").end();
    assert!(refusal(&archive(&build_on_tensor, &[("0", &floats(&SIX))])).contains("sets attributes"));
    let call_a_string = Pickle(b"\x80\x02".to_vec()).text("x").op(b")R.").0;
    assert!(refusal(&archive(&call_a_string, &[])).contains("no allowed name"));
    let call_a_storage_class = Pickle(b"\x80\x02".to_vec()).global("torch", "FloatStorage").op(b")R.").0;
    assert!(refusal(&archive(&call_a_storage_class, &[])).contains("0 arguments"));
}

#[test]
fn tensors_must_lie_in_their_storage() {
    let bad = |offset, size: &[i32], stride: &[i32]| {
        let pickle = Pickle::state_dict().text("w").tensor("FloatStorage", "0", offset, size, stride).end();
        refusal(&archive(&pickle, &[("0", &floats(&SIX))]))
    };
    assert!(bad(0, &[7], &[1]).contains("`w`: shape [7] is larger than its storage of 6 elements"));
    assert!(bad(1, &[6], &[1]).contains("reaches past the end"));
    assert!(bad(0, &[2, 3], &[4, 1]).contains("reaches past the end"));
    // Expanded: one element claims to be a billion.
    assert!(bad(0, &[1 << 30], &[0]).contains("larger than its storage"));
    assert!(bad(0, &[i32::MAX, i32::MAX, i32::MAX], &[1, 1, 1]).contains("larger than its storage"));
    assert!(bad(0, &[-1], &[1]).contains("-1"));
    assert!(bad(0, &[3], &[-1]).contains("-1"));
    assert!(bad(-1, &[3], &[1]).contains("-1"));
    assert!(bad(0, &[3], &[1, 1]).contains("1 sizes and 2 strides"));
    assert!(bad(0, &[1; 65], &[1; 65]).contains("65 dimensions"));
    let pickle = Pickle::state_dict().text("w").tensor("FloatStorage", "9", 0, &[1], &[1]).end();
    assert!(refusal(&archive(&pickle, &[])).contains("`data/9` is missing"));
    let pickle = Pickle::state_dict().text("w").tensor("FloatStorage", "../data.pkl", 0, &[1], &[1]).end();
    assert!(refusal(&archive(&pickle, &[])).contains("a key that torch would not write"));
}

#[test]
fn a_dictionary_that_contains_itself_is_no_problem() {
    // d = {}; d["d"] = d; and a tuple nested 100,000 deep.
    let mut pickle = b"\x80\x02}q\x00".to_vec();
    pickle.extend_from_slice(b"X\x01\0\0\0dh\x00s)");
    pickle.extend(std::iter::repeat_n(0x85, 100_000));
    pickle.extend_from_slice(b"0.");
    assert!(refusal(&archive(&pickle, &[])).contains("0x30"));
    pickle.truncate(pickle.len() - 2);
    pickle.push(b'.');
    assert_eq!(refusal(&archive(&pickle, &[])), PickleError::NoTensors.to_string());
}

#[test]
fn a_pickle_that_makes_too_much_is_stopped() {
    let mut pickle = b"\x80\x02".to_vec();
    pickle.extend(std::iter::repeat_n(b')', 3 << 20));
    assert!(refusal(&archive_with(&pickle, &[], CompressionMethod::Deflated)).contains("too many values"));
}

#[test]
fn shared_names_do_not_multiply() {
    let long = "n".repeat(3000);
    let mut p = Pickle::state_dict().text(&long).op(b"q\x01").tensor("FloatStorage", "0", 0, &[6], &[1]).op(b"q\x02");
    for _ in 0..100 {
        p = p.op(b"h\x01h\x02");
    }
    assert!(refusal(&archive(&p.end(), &[("0", &floats(&SIX))])).contains("names are longer than the pickle"));
}

#[test]
fn other_files_are_told_apart() {
    assert!(refusal(b"\x80\x02\x8a\x0a").contains("before 1.6"));
    assert!(refusal(b"version https://git-lfs").contains("not a readable torch archive"));
    assert!(refusal(b"").contains("not a readable torch archive"));
    let empty = Pickle::state_dict().end();
    assert_eq!(refusal(&archive(&empty, &[])), PickleError::NoTensors.to_string());
    assert_eq!(refusal(&archive(b"\x80\x02K\x01.", &[])), PickleError::NoTensors.to_string());
    assert!(refusal(&archive(b"\x80\x02", &[])).contains("ends in the middle"));
    assert!(refusal(&archive(b"\x80\x02(t", &[])).contains("damaged pickle at byte 4"));
}

#[test]
fn a_damaged_storage_is_found_when_it_is_read() {
    let mut file = one_tensor();
    let at = file.windows(24).position(|w| w == floats(&SIX)).unwrap();
    file[at + 5] ^= 1;
    let parsed = TorchFile::parse(&file).unwrap();
    let error = parsed.read(&file, "w", &parsed.tensors["w"]).unwrap_err().to_string();
    assert!(error.contains("m/data/0") && error.contains("checksum"), "{error}");
}

#[test]
fn a_truncated_file_is_refused() {
    let file = one_tensor();
    for cut in 0..file.len() {
        assert!(TorchFile::parse(&file[..cut]).is_err(), "{cut}");
    }
}

proptest! {
    #[test]
    fn damaged_pickles_never_panic(flips in proptest::collection::vec((0usize..400, any::<u8>()), 1..4), cut in 0usize..800) {
        let mut pickle = Pickle::state_dict()
            .text("a").tensor("FloatStorage", "0", 0, &[2, 3], &[3, 1])
            .text("b").tensor("HalfStorage", "0", 1, &[3, 2], &[1, 3])
            .end();
        let n = pickle.len();
        for (at, byte) in flips {
            pickle[at % n] = byte;
        }
        pickle.truncate(if cut < 400 { n } else { cut % n });
        let file = archive(&pickle, &[("0", &floats(&SIX))]);
        if let Ok(parsed) = TorchFile::parse(&file) {
            for (name, tensor) in &parsed.tensors {
                let bytes = parsed.read(&file, name, tensor).unwrap();
                let elements: usize = tensor.shape.iter().product();
                prop_assert_eq!(bytes.len(), elements * tensor.dtype.bitsize() / 8);
            }
        }
    }

    #[test]
    fn random_instructions_never_panic(body in proptest::collection::vec(
        prop_oneof![any::<u8>(), proptest::sample::select(&b"()]}tuRQbqhasK.\x85\x88X"[..])], 0..200))
    {
        let _ = machine::run(&[b"\x80\x02ccollections\nOrderedDict\n", &body[..]].concat());
    }

    #[test]
    fn damaged_archives_never_panic(at in 0usize..2000, byte: u8) {
        let mut file = one_tensor();
        let n = file.len();
        file[at % n] = byte;
        if let Ok(parsed) = TorchFile::parse(&file) {
            for (name, tensor) in &parsed.tensors {
                let _ = parsed.read(&file, name, tensor);
            }
        }
    }
}
