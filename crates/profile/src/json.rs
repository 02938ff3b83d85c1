//! JSON text, piece by piece.

use std::io::Write;

use serde::de::IgnoredAny;

/// An object being written.
pub(crate) struct Object<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    any: bool,
}

impl<'o> Object<'o> {
    /// Opens an object.
    pub fn open(out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        out.push(b'{');
        Self { out, start, any: false }
    }

    /// Closes it.
    pub fn close(self) {
        self.out.push(b'}');
    }

    /// Whether it has a member.
    pub fn any(&self) -> bool {
        self.any
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.out.len() - self.start
    }

    fn key(&mut self, key: &str) -> &mut Vec<u8> {
        if self.any {
            self.out.extend_from_slice(b", ");
        }
        self.any = true;
        text(self.out, key);
        self.out.extend_from_slice(b": ");
        self.out
    }

    pub fn text(&mut self, key: &str, value: &str) {
        text(self.key(key), value);
    }

    pub fn int(&mut self, key: &str, value: impl Into<Option<i64>>) {
        if let Some(value) = value.into() {
            put(self.key(key), format_args!("{value}"));
        }
    }

    /// NaN is nothing.
    pub fn float(&mut self, key: &str, value: f64) {
        if value.is_finite() {
            // The shortest text that gives the same number.
            put(self.key(key), format_args!("{value:?}"));
        }
    }

    /// A process or a thread: a number where the source wrote one.
    pub fn id(&mut self, key: &str, value: &str) {
        if value.parse::<i64>().is_ok_and(|number| number.to_string() == value) {
            self.key(key).extend_from_slice(value.as_bytes());
        } else {
            self.text(key, value);
        }
    }

    /// Nanoseconds as microseconds with three decimals, as Kineto writes times.
    pub fn us(&mut self, key: &str, ns: i128) {
        let sign = if ns < 0 { "-" } else { "" };
        let ns = ns.unsigned_abs();
        put(self.key(key), format_args!("{sign}{}.{:03}", ns / 1000, ns % 1000));
    }

    /// A value that is JSON already.
    pub fn raw(&mut self, key: &str, json: &str) {
        self.key(key).extend_from_slice(json.as_bytes());
    }

    /// An object, made by `fill`; nothing when it stays empty.
    pub fn object(&mut self, key: &str, fill: impl FnOnce(&mut Object<'_>)) {
        let (start, any) = (self.out.len(), self.any);
        let mut inner = Object::open(self.key(key));
        fill(&mut inner);
        if inner.any() {
            inner.close();
        } else {
            self.out.truncate(start);
            self.any = any;
        }
    }

    /// The members of an object that is JSON already; anything else becomes a text under `key`.
    pub fn members(&mut self, key: &str, json: Option<&str>) {
        let Some(json) = json else { return };
        let inner = json.trim().strip_prefix('{').and_then(|json| json.strip_suffix('}'));
        match inner {
            Some(inner) if is_json(json) => {
                if !inner.trim().is_empty() {
                    if self.any {
                        self.out.extend_from_slice(b", ");
                    }
                    self.any = true;
                    self.out.extend_from_slice(inner.as_bytes());
                }
            }
            _ => self.text(key, json),
        }
    }
}

/// Whether a text is one JSON value.
pub(crate) fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("memory takes all bytes, and a text is JSON");
}

fn put(out: &mut Vec<u8>, value: std::fmt::Arguments<'_>) {
    out.write_fmt(value).expect("memory takes all bytes");
}

#[cfg(test)]
mod tests {
    use super::Object;

    #[test]
    fn values_are_json_and_times_are_decimals() {
        let mut out = Vec::new();
        let mut object = Object::open(&mut out);
        object.text("name", "a\"b\u{1}\n");
        object.id("pid", "-1");
        object.id("tid", "007");
        object.us("ts", 1_712_195_495_519_689_047);
        object.us("dur", -5);
        object.int("none", None);
        object.float("nan", f64::NAN);
        object.float("value", 0.1);
        object.object("empty", |_| ());
        object.object("args", |args| {
            args.members("args", Some("{\"grid\": [1, 2]}"));
            args.members("args", Some("{}"));
            args.members("broken", Some("{\"a\": }"));
            args.int("last", 3);
        });
        object.close();
        let text = String::from_utf8(out).unwrap();
        let expected = concat!(
            r#"{"name": "a\"b\u0001\n", "pid": -1, "tid": "007", "ts": 1712195495519689.047, "dur": -0.005, "#,
            r#""value": 0.1, "args": {"grid": [1, 2], "broken": "{\"a\": }", "last": 3}}"#
        );
        assert_eq!(text, expected);
    }
}
