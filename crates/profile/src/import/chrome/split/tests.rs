use super::*;
use proptest::prelude::*;

/// All pieces of `text`, given to the splitter in parts of `part` bytes.
fn pieces(text: &[u8], part: usize) -> Vec<(char, String)> {
    let mut splitter = Splitter::new();
    let mut buffer = Vec::new();
    let mut found = Vec::new();
    for part in text.chunks(part) {
        let kept = splitter.kept_from();
        buffer.drain(..kept);
        splitter.dropped(kept);
        buffer.extend_from_slice(part);
        while let Some(piece) = splitter.next(&buffer).unwrap() {
            let text = |(start, end): (usize, usize)| String::from_utf8_lossy(&buffer[start..end]).into_owned();
            found.push(match piece {
                Piece::Event { start, end } => ('e', text((start, end))),
                Piece::Oversized { start, end } => ('o', text((start, end))),
                Piece::Skipped { start, end } => ('s', text((start, end))),
                Piece::Garbage { start, end } => ('g', text((start, end))),
                Piece::Entry { key, value } => ('k', format!("{}={}", text(key), text(value).trim())),
            });
        }
    }
    found
}

#[test]
fn events_and_entries_are_found_in_any_order_and_cut() {
    let text = br#"{"a": 1, "d": {"x": [1, "}"]}, "traceEvents": [ {"n": "a}\"{", "args": {"k": {}}}, {} ,
        {"m": 2} ], "z": "e", "l": [1]}"#;
    let expected = [
        ('k', "a=1"),
        ('k', "d={\"x\": [1, \"}\"]}"),
        ('e', "{\"n\": \"a}\\\"{\", \"args\": {\"k\": {}}}"),
        ('e', "{}"),
        ('e', "{\"m\": 2}"),
        ('k', "z=\"e\""),
        ('k', "l=[1]"),
    ];
    let expected: Vec<_> = expected.iter().map(|(kind, text)| (*kind, (*text).to_owned())).collect();
    for part in [1, 2, 3, 7, 64, 1000] {
        assert_eq!(pieces(text, part), expected, "parts of {part}");
    }
    assert_eq!(pieces(b"\xef\xbb\xbf [{\"a\":1},\n{\"b\":2}]", 5).len(), 2);
}

#[test]
fn damage_stays_in_its_line() {
    let text = b"{\"traceEvents\": [\n{\"name\": \"a \"b\", \"ts\": 1\n},\n{\"name\": \"c\"},\nnonsense,\n{\"name\": \"d\"}\n]}";
    let found = pieces(text, 1000);
    assert_eq!(found.iter().filter(|(kind, _)| *kind == 'e').count(), 3, "{found:?}");
    assert!(found.contains(&('e', "{\"name\": \"c\"}".into())), "{found:?}");
    assert!(found.contains(&('g', "nonsense,".into())), "{found:?}");
}

#[test]
fn stray_brackets_end_nothing() {
    for text in [
        "[{\"a\":1},{\"b\":2}],{\"c\":3}]",
        "{\"traceEvents\":[{\"a\":1}],{\"b\":2},{\"c\":3}]}",
        "[[1, [2]],{\"a\":1},{\"b\":2},{\"c\":3}]",
        "{\"traceEvents\":[{\"a\":1},\nnonsense ] x\n,{\"b\":2},{\"c\":3}]}",
    ] {
        for part in [1, 7, 1000] {
            let found = pieces(text.as_bytes(), part);
            assert_eq!(found.iter().filter(|(kind, _)| *kind == 'e').count(), 3, "{text} {found:?}");
            assert!(found.iter().any(|(kind, _)| *kind == 'g'), "{text} {found:?}");
            assert!(found.iter().all(|(kind, _)| *kind != 'k'), "{text} {found:?}");
        }
    }
    let found = pieces(b"{\"traceEvents\":[]} {\"traceEvents\":[{}]}", 1000);
    assert_eq!(found, [('g', String::new())]);
}

#[test]
fn a_huge_value_beside_the_events_is_skipped_to_its_end() {
    let value = format!("[{}\"]}}\"]", "{\"f\": [1]},".repeat(MAX_EVENT / 8));
    let text = format!("{{\"frames\": {value}, \"traceEvents\": [{{\"a\": 1}}], \"more\": {value}, \"rank\": 3}}");
    let found = pieces(text.as_bytes(), 1 << 20);
    let kinds: String = found.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, "sesk");
    assert_eq!(found[3].1, "rank=3");
}

#[test]
fn what_is_no_trace_is_refused() {
    assert_eq!(Splitter::new().next(b"hello"), Err(NoTrace));
    let mut splitter = Splitter::new();
    splitter.silence = MAX_SILENCE;
    assert_eq!(splitter.next(b"  {"), Err(NoTrace));
}

proptest! {
    #[test]
    fn parts_do_not_matter_and_nothing_panics(text in "[ \\n{}\\[\\]\",:a1\\\\]{0,60}", part in 1usize..20) {
        let text = format!("{{\"traceEvents\":[{text}");
        prop_assert_eq!(pieces(text.as_bytes(), part), pieces(text.as_bytes(), 1000));
    }
}
