use super::*;
use serde_json::{Value, json};
use std::fs;

/// The folder of shared test material; without it the test says so and passes.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: no {}", path.display());
    None
}

struct Expected {
    texts: Vec<String>,
    json: Value,
}

fn expected() -> Option<Expected> {
    let json: Value = serde_json::from_str(&fs::read_to_string(shared("expected.json")?).unwrap()).unwrap();
    Some(Expected { texts: serde_json::from_value(json["texts"].clone()).unwrap(), json })
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// A copy of a tokenizer folder's vocabulary, with its `tokenizer_config.json` if asked for, without `tokenizer.json`.
fn vocabulary_of(folder: &Path, with_config: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut names = vec!["vocab.json", "merges.txt", "vocab.txt"];
    if with_config {
        names.push("tokenizer_config.json");
    }
    for name in names {
        if folder.join(name).exists() {
            fs::copy(folder.join(name), dir.path().join(name)).unwrap();
        }
    }
    dir
}

const LIKE_TRANSFORMERS: Options = Options { allow_special_tokens: true };

/// The same tokenizer from `tokenizer.json`, from vocabulary files with a config, and from vocabulary files alone.
fn three_ways(folder: &Path) -> [Tokenizer; 3] {
    let (described, bare) = (vocabulary_of(folder, true), vocabulary_of(folder, false));
    [folder, described.path(), bare.path()].map(|dir| Tokenizer::open_with(dir, &LIKE_TRANSFORMERS).unwrap())
}

#[test]
fn roberta_and_gpt2_give_the_reference_ids() {
    for (folder, key) in [("tokenizer-roberta-base", "roberta_ids"), ("tokenizer-gpt2", "gpt2_ids")] {
        let (Some(expected), Some(folder)) = (expected(), shared(folder)) else {
            return;
        };
        for tokenizer in three_ways(&folder) {
            for (text, wanted) in expected.texts.iter().zip(expected.json[key].as_array().unwrap()) {
                let mut got = tokenizer.encode(text, 100_000).unwrap();
                assert!(!got.truncated);
                got.ids.truncate(600);
                assert_eq!(got.ids, ids(wanted), "{key}: {text:?}");
            }
        }
    }
}

#[test]
fn minilm_gives_the_reference_ids_and_lengths() {
    let (Some(expected), Some(folder)) = (expected(), shared("tokenizer-bert-base-uncased")) else {
        return;
    };
    for tokenizer in three_ways(&folder) {
        for (text, wanted) in expected.texts.iter().zip(expected.json["minilm"].as_array().unwrap()) {
            let got = tokenizer.encode(text, 512).unwrap();
            assert_eq!(got.ids.len() as u64, wanted["n"].as_u64().unwrap(), "{text:?}");
            assert_eq!(got.ids[..got.ids.len().min(40)], ids(&wanted["ids"]), "{text:?}");
        }
    }
}

#[test]
fn distilbert_gives_the_reference_ids_and_lengths() {
    let (Some(expected), Some(folder)) = (expected(), shared("tokenizer-bert-base-cased")) else {
        return;
    };
    for tokenizer in three_ways(&folder) {
        for (text, wanted) in expected.texts.iter().zip(expected.json["distil"].as_array().unwrap()) {
            let got = tokenizer.encode(text, 512).unwrap();
            assert_eq!(got.ids.len() as u64, wanted["n"].as_u64().unwrap(), "{text:?}");
            assert_eq!(got.ids[..got.ids.len().min(40)], ids(&wanted["ids"]), "{text:?}");
        }
    }
}

#[test]
fn control_tokens_in_a_text_are_text_unless_allowed() {
    for folder in
        ["tokenizer-roberta-base", "tokenizer-gpt2", "tokenizer-bert-base-uncased", "tokenizer-bert-base-cased"]
    {
        let Some(folder) = shared(folder) else { return };
        let vocabulary = vocabulary_of(&folder, true);
        for dir in [folder.as_path(), vocabulary.path()] {
            let tokenizer = Tokenizer::open(dir).unwrap();
            let s = tokenizer.special_ids();
            let special: Vec<_> = [s.pad, s.cls, s.sep, s.mask, s.bos, s.eos].into_iter().flatten().collect();
            let text = "</s> <mask> [SEP] [CLS]<|endoftext|><pad>[MASK]";
            let got = tokenizer.encode(text, 512).unwrap();
            let inside = got.ids.iter().zip(&got.offsets).filter(|(_, offsets)| **offsets != (0, 0));
            assert!(inside.clone().count() > 10);
            for (id, (start, end)) in inside {
                assert!(!special.contains(id), "{:?} became token {id}", &text[*start..*end]);
            }
            let allowed = Tokenizer::open_with(dir, &LIKE_TRANSFORMERS).unwrap().encode(text, 512).unwrap();
            assert_ne!(allowed.ids, got.ids);
        }
    }
}

/// A WordPiece vocabulary, lower-case unless it has the last token.
fn tiny(extra: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b", "##c", "é"];
    fs::write(dir.path().join("vocab.txt"), [&tokens, extra].concat().join("\n") + "\n").unwrap();
    dir
}

#[test]
fn truncation_keeps_the_control_tokens() {
    let tokenizer = Tokenizer::open(tiny(&[]).path()).unwrap();
    let whole = tokenizer.encode("a b c", 5).unwrap();
    assert_eq!((whole.ids, whole.truncated), (vec![2, 5, 6, 7, 3], false));
    let cut = tokenizer.encode("a b c", 4).unwrap();
    assert_eq!((cut.ids, cut.truncated), (vec![2, 5, 6, 3], true));
    let cut = tokenizer.encode("abc", 3).unwrap();
    assert_eq!((cut.ids, cut.truncated), (vec![2, 5, 3], true));
    let nothing = tokenizer.encode("a b c", 2).unwrap();
    assert_eq!((nothing.ids, nothing.truncated), (vec![2, 3], true));
    let empty = tokenizer.encode("", 2).unwrap();
    assert_eq!((empty.ids, empty.truncated), (vec![2, 3], false));
    let error = tokenizer.encode("a", 1).unwrap_err().to_string();
    assert!(error.contains("limit of 1 tokens") && error.contains("take 2"), "{error}");
}

#[test]
fn either_end_of_a_text_can_be_cut() {
    let dir = tiny(&[]);
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    let whole = tokenizer.encode("a b c", 16).unwrap().ids;
    let tail = tokenizer.encode_cut("a b c", None, 4, Cut::Start).unwrap();
    assert_eq!((tail.ids, tail.truncated), (vec![whole[0], whole[2], whole[3], whole[4]], true));
    let head = tokenizer.encode_cut("a b c", None, 4, Cut::End).unwrap();
    assert_eq!((head.ids, head.truncated), (vec![whole[0], whole[1], whole[2], whole[4]], true));
    assert_eq!(tokenizer.continuing_prefix(), Some("##"));
}

#[test]
fn a_text_of_megabytes_gives_the_tokens_of_its_beginning_at_once() {
    for folder in ["tokenizer-roberta-base", "tokenizer-bert-base-uncased", "tokenizer-bert-base-cased"] {
        let Some(dir) = shared(folder) else { return };
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let words =
            ["naïve", "  the\u{301}", "\n\n", "😀😀", "unbelievably-long", "a", "\u{3000}", "x".repeat(300).leak()];
        let text: String = (0..40_000).map(|i| format!("{} ", words[(i * i + i / 7) % words.len()])).collect();
        let whole = tokenizer.encode(&text[..text.floor_char_boundary(60_000)], 1 << 20).unwrap();
        let cut = tokenizer.encode(&text, 512).unwrap();
        assert!(cut.truncated);
        assert_eq!(cut.ids[..511], whole.ids[..511], "{folder}");
        assert_eq!(cut.offsets[..511], whole.offsets[..511], "{folder}");
    }
}

#[test]
fn pairs_are_cut_longest_first() {
    let tokenizer = Tokenizer::open(tiny(&[]).path()).unwrap();
    let whole = tokenizer.encode_pair("a b", "c", 6).unwrap();
    assert_eq!((whole.ids, whole.type_ids), (vec![2, 5, 6, 3, 7, 3], vec![0, 0, 0, 0, 1, 1]));
    let cut = tokenizer.encode_pair("a b c a b c", "c", 6).unwrap();
    assert_eq!((cut.ids, cut.truncated), (vec![2, 5, 6, 3, 7, 3], true));
    let both = tokenizer.encode_pair("a a a", "b b b", 7).unwrap();
    assert_eq!(both.ids, [2, 5, 5, 3, 6, 6, 3]);
    assert!(tokenizer.encode_pair("a", "b", 2).is_err());
}

#[test]
fn offsets_are_bytes_of_the_text() {
    let tokenizer = Tokenizer::open_with(tiny(&["E"]).path(), &Options::default()).unwrap();
    let text = "é  ab";
    let got = tokenizer.encode(text, 16).unwrap();
    let words: Vec<_> = got.offsets.iter().map(|&(start, end)| &text[start..end]).collect();
    assert_eq!(words, ["", "é", "a", "b", ""]);
}

#[test]
fn lower_casing_follows_the_config_and_else_the_vocabulary() {
    let lower = |dir: &Path| Tokenizer::open(dir).unwrap().encode("A", 8).unwrap().ids[1] == 5;
    let (uncased, cased) = (tiny(&[]), tiny(&["B"]));
    assert!(lower(uncased.path()) && !lower(cased.path()));
    fs::write(uncased.path().join("tokenizer_config.json"), r#"{"do_lower_case":false}"#).unwrap();
    fs::write(cased.path().join("tokenizer_config.json"), r#"{"do_lower_case":true}"#).unwrap();
    assert!(!lower(uncased.path()) && lower(cased.path()));
}

#[test]
fn padding_and_truncation_in_the_file_are_dropped() {
    let source = Tokenizer::open(tiny(&[]).path()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    source.save(dir.path(), 64).unwrap();
    let path = dir.path().join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    json["truncation"] = json!({"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    json["padding"] = json!({"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
    fs::write(&path, json.to_string()).unwrap();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    assert_eq!(tokenizer.encode("a b c", 16).unwrap().ids, [2, 5, 6, 7, 3]);
    tokenizer.save(dir.path(), 64).unwrap();
    let json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!((&json["truncation"], &json["padding"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_saved_tokenizer_gives_the_same_ids() {
    let Some(folder) = shared("tokenizer-roberta-base") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for tokenizer in three_ways(&folder) {
        tokenizer.save(dir.path(), 512).unwrap();
        let again = Tokenizer::open_with(dir.path(), &LIKE_TRANSFORMERS).unwrap();
        for text in ["Covid cases are increasing fast!", "Hello <mask>.", "naïve 😀"] {
            assert_eq!(again.encode(text, 512).unwrap(), tokenizer.encode(text, 512).unwrap());
        }
        assert_eq!(again.special_ids(), tokenizer.special_ids());
        assert!(dir.path().join("tokenizer_config.json").exists());
    }
}

#[test]
fn a_tokenizer_without_a_config_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let source = tiny(&[]);
    Tokenizer::open(source.path()).unwrap().save(dir.path(), 64).unwrap();
    let config = fs::read_to_string(dir.path().join("tokenizer_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!((&config["model_max_length"], &config["cls_token"]), (&json!(64), &json!("[CLS]")));
    assert!(dir.path().join("vocab.txt").exists());
}

#[test]
fn added_tokens_follow_the_vocabulary() {
    let dir = tiny(&[]);
    fs::write(dir.path().join("added_tokens.json"), r#"{"@user":13,"http":12}"#).unwrap();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    assert_eq!(tokenizer.encode("a @user", 8).unwrap().ids, [2, 5, 13, 3]);
    assert_eq!(tokenizer.vocab_size(), 14);
    fs::write(dir.path().join("added_tokens.json"), r#"{"@user":99}"#).unwrap();
    assert!(Tokenizer::open(dir.path()).unwrap_err().to_string().contains("`@user` has the id 99"));
}

#[test]
fn batches_keep_their_order_on_any_number_of_threads() {
    let tokenizer = Tokenizer::open(tiny(&[]).path()).unwrap();
    let texts: Vec<_> = (0..300).map(|i| "a ".repeat(i % 7) + ["b", "c"][i % 2]).collect();
    let one_by_one: Vec<_> = texts.iter().map(|t| tokenizer.encode(t, 5).unwrap()).collect();
    for threads in [0, 1, 3, 64] {
        assert_eq!(tokenizer.encode_batch(&texts, 5, threads).unwrap(), one_by_one);
    }
    assert!(tokenizer.encode_batch(&texts, 1, 3).is_err());
    assert!(tokenizer.encode_batch::<&str>(&[], 5, 3).unwrap().is_empty());
    assert!(!tokenizers::parallelism::has_parallelism_been_used(), "the crate started threads of its own");
}

#[test]
fn control_tokens_are_found_by_role() {
    let Some(folder) = shared("tokenizer-roberta-base") else {
        return;
    };
    let tokenizer = Tokenizer::open(&folder).unwrap();
    let wanted = SpecialIds {
        pad: Some(1),
        unk: Some(3),
        cls: Some(0),
        sep: Some(2),
        mask: Some(50264),
        bos: Some(0),
        eos: Some(2),
    };
    assert_eq!(tokenizer.special_ids(), wanted);
    assert_eq!(tokenizer.vocab_size(), 50265);
    assert_eq!(tokenizer.token_to_id("Ġcases"), Some(1200));
}

#[test]
fn bad_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = |dir: &Path| Tokenizer::open(dir).unwrap_err().to_string();
    assert!(error(dir.path()).contains("tokenizer.json, vocab.json with merges.txt, and vocab.txt"));
    fs::write(dir.path().join("vocab.txt"), "a\nb\n").unwrap();
    assert!(error(dir.path()).contains("vocab.txt`: it lacks the control token `[UNK]`"));
    fs::write(dir.path().join("vocab.json"), r#"{"a":0,"<|endoftext|>":1}"#).unwrap();
    fs::write(dir.path().join("merges.txt"), "#version: 0.2\na b c\n").unwrap();
    let message = error(dir.path());
    assert!(message.contains("merges.txt`: line 2"), "{message}");
    fs::write(dir.path().join("merges.txt"), "a b\n").unwrap();
    assert!(error(dir.path()).contains("merges.txt"));
    fs::write(dir.path().join("tokenizer.json"), r#"{"version":"1.0"}"#).unwrap();
    assert!(error(dir.path()).contains("tokenizer.json"));
    fs::write(dir.path().join("tokenizer_config.json"), "[]").unwrap();
    assert!(error(dir.path()).contains("tokenizer_config.json"));
}
