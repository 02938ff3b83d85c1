//! What can be read of an event that is no JSON.
//!
//! Kineto escapes quotes in names only since the middle of 2026 and lets control bytes through; so names break objects, rarely
//! anything else does.

use memchr::memmem;

/// The object with every control byte inside a string escaped.
pub(super) fn escape_controls(text: &str) -> Option<String> {
    let mut fixed = String::with_capacity(text.len() + 16);
    let mut string = false;
    let mut escaped = false;
    let mut changed = false;
    for character in text.chars() {
        if string && (character as u32) < 0x20 {
            changed = true;
            fixed.push_str(&format!("\\u{:04x}", character as u32));
            escaped = false;
            continue;
        }
        match character {
            '"' if !escaped => string = !string,
            '\\' if string && !escaped => {
                escaped = true;
                fixed.push(character);
                continue;
            }
            _ => {}
        }
        escaped = false;
        fixed.push(character);
    }
    changed.then_some(fixed)
}

/// The keys of an event, in any order.
const KEYS: [&str; 12] = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "bp", "s", "cname"];

/// Cuts a text that swallowed its neighbours at every place that looks like the border of two events.
pub(super) fn borders(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut pieces = Vec::new();
    let mut start = 0;
    for brace in memchr::memchr_iter(b'}', bytes) {
        let after = skip(bytes, brace + 1);
        if bytes.get(after) != Some(&b',') {
            continue;
        }
        let open = skip(bytes, after + 1);
        if bytes.get(open) != Some(&b'{') {
            continue;
        }
        let key = skip(bytes, open + 1);
        if bytes.get(key) == Some(&b'"') && KEYS.iter().any(|name| quoted(&bytes[key..], name)) {
            pieces.push(&text[start..=brace]);
            start = open;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

fn skip(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

fn quoted(bytes: &[u8], name: &str) -> bool {
    bytes.len() >= name.len() + 2 && &bytes[1..=name.len()] == name.as_bytes() && bytes[name.len() + 1] == b'"'
}

/// The event rebuilt from the fields that can be told apart: each reaches to the next known key. A text keeps its stray quotes,
/// arguments that are no JSON are left out. None when no phase or no time is found.
pub(super) fn rebuild(text: &str) -> Option<String> {
    let body = text.trim().strip_prefix('{')?;
    let body = body.strip_suffix('}').unwrap_or(body);
    // Where each known key begins, and where its value does.
    let mut fields: Vec<(usize, usize, &str)> = Vec::new();
    for key in KEYS {
        let pattern = format!("\"{key}\"");
        for at in memmem::find_iter(body.as_bytes(), pattern.as_bytes()) {
            let before = body[..at].trim_end();
            let colon = skip(body.as_bytes(), at + pattern.len());
            if (before.is_empty() || before.ends_with([',', '{'])) && body.as_bytes().get(colon) == Some(&b':') {
                fields.push((at, colon + 1, key));
            }
        }
    }
    fields.sort_unstable();
    // Keys of the arguments may have the names of an event's: what lies behind `args` is its own.
    if let Some(args) = fields.iter().position(|field| field.2 == "args")
        && let Some(end) = end_of_object(body, fields[args].1)
    {
        let start = fields[args].0;
        fields.retain(|field| field.0 <= start || field.0 >= end);
    }
    let mut rebuilt = String::from("{");
    let (mut phase, mut time) = (false, false);
    for (place, &(_, start, key)) in fields.iter().enumerate() {
        let end = fields.get(place + 1).map_or(body.len(), |next| next.0);
        let value = body[start..end].trim().trim_end_matches(',').trim_end();
        let value = match value.strip_prefix('"') {
            Some(inner) => serde_json::to_string(&plain(inner.strip_suffix('"').unwrap_or(inner))).ok()?,
            None if serde_json::from_str::<&serde_json::value::RawValue>(value).is_ok() => value.to_owned(),
            None => continue,
        };
        phase |= key == "ph";
        time |= key == "ts";
        if rebuilt.len() > 1 {
            rebuilt.push(',');
        }
        rebuilt.push_str(&format!("\"{key}\":{value}"));
    }
    rebuilt.push('}');
    (phase && time).then_some(rebuilt)
}

/// The end of the object that begins at or after `start`, if its braces and strings agree.
fn end_of_object(text: &str, start: usize) -> Option<usize> {
    let open = skip(text.as_bytes(), start);
    let mut values = serde_json::Deserializer::from_str(text.get(open..)?).into_iter::<&serde_json::value::RawValue>();
    values.next()?.ok()?;
    Some(open + values.byte_offset())
}

/// A text with the escapes it has undone, and everything else as it stands.
fn plain(inner: &str) -> String {
    let mut fixed = String::with_capacity(inner.len() + 2);
    fixed.push('"');
    let mut escaped = false;
    for character in inner.chars() {
        match character {
            '"' if !escaped => fixed.push_str("\\\""),
            character if (character as u32) < 0x20 => fixed.push_str(&format!("\\u{:04x}", character as u32)),
            character => fixed.push(character),
        }
        escaped = character == '\\' && !escaped;
    }
    fixed.push('"');
    serde_json::from_str(&fixed).unwrap_or_else(|_| inner.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_quotes_stay_in_the_name() {
        let text = r#"{ "ph": "X", "cat": "python_function", "name": "f"oo(" "x\n")", "pid": 1, "tid": 2, "ts": 3.5, "dur": 1,
            "args": {"name": "inner", "ts": 7} }"#;
        let value: serde_json::Value = serde_json::from_str(&rebuild(text).unwrap()).unwrap();
        assert_eq!(value["name"], "f\"oo(\" \"x\n\")");
        assert_eq!((&value["ts"], &value["dur"]), (&serde_json::json!(3.5), &serde_json::json!(1)));
        assert_eq!(value["args"]["ts"], 7);
        assert_eq!(rebuild("{\"name\": \"a\"b\"}"), None);
    }

    #[test]
    fn control_bytes_are_escaped_inside_strings_only() {
        let text = "{\n\"name\": \"a\u{1}b\\\"\n\"}";
        assert_eq!(escape_controls(text).unwrap(), "{\n\"name\": \"a\\u0001b\\\"\\u000a\"}");
        assert_eq!(escape_controls("{\n\"name\": \"a\"}"), None);
    }

    #[test]
    fn swallowed_neighbours_are_cut_off() {
        let text = r#"{"name": "a"b", "ts": 1}, {"name": "c", "args": {"l": [{"k": 1}, {"k": 2}]}},{"ph": "X"}"#;
        assert_eq!(borders(text).len(), 3);
    }
}
