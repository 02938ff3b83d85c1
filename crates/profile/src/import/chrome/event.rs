//! One event, as JSON says it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A text that borrows from the source unless it has escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Str<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Str<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Str(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Str(Cow::Owned(text.to_owned())))
            }
            // Names are not always texts in the wild.
            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(Str(Cow::Owned(value.to_string())))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(Str(Cow::Owned(value.to_string())))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
                Ok(Str(Cow::Owned(value.to_string())))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(Str(Cow::Owned(value.to_string())))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Str::default())
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// A value as it stands in the source.
pub(super) type Raw<'a> = &'a RawValue;

/// The fields of an event that mean something.
#[derive(Debug, Default)]
pub(super) struct Event<'a> {
    pub ph: Str<'a>,
    pub name: Str<'a>,
    pub cat: Option<Str<'a>>,
    pub pid: Option<Raw<'a>>,
    pub tid: Option<Raw<'a>>,
    pub ts: Option<Raw<'a>>,
    pub dur: Option<Raw<'a>>,
    pub id: Option<Raw<'a>>,
    pub bp: Option<Str<'a>>,
    pub scope: Option<Str<'a>>,
    pub args: Args<'a>,
}

/// The arguments of an event: those with columns of their own, and the rest.
#[derive(Debug, Default)]
pub(super) struct Args<'a> {
    pub external_id: Option<Raw<'a>>,
    pub correlation: Option<Raw<'a>>,
    pub stream: Option<Raw<'a>>,
    pub device: Option<Raw<'a>>,
    pub bytes: Option<Raw<'a>>,
    pub bandwidth: Option<Raw<'a>>,
    pub event_index: Option<Raw<'a>>,
    pub record_function: Option<Raw<'a>>,
    pub sequence: Option<Raw<'a>>,
    pub forward_thread: Option<Raw<'a>>,
    pub python_id: Option<Raw<'a>>,
    pub python_parent: Option<Raw<'a>>,
    pub python_module: Option<Raw<'a>>,
    pub group: Option<Raw<'a>>,
    pub collective_sequence: Option<Raw<'a>>,
    pub dtype: Option<Raw<'a>>,
    /// `Input Dims`, `Input type`, `Input Strides`, `Concrete Inputs`.
    pub inputs: Vec<(Cow<'a, str>, Raw<'a>)>,
    /// Whatever else there is, in the order of the source.
    pub rest: Vec<(Cow<'a, str>, Raw<'a>)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Event<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Event<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut event = Event::default();
                while let Some(Str(key)) = map.next_key::<Str<'de>>()? {
                    match &*key {
                        "ph" => event.ph = map.next_value()?,
                        "name" => event.name = map.next_value()?,
                        "cat" => event.cat = map.next_value()?,
                        "pid" => event.pid = Some(map.next_value()?),
                        "tid" => event.tid = Some(map.next_value()?),
                        "ts" => event.ts = Some(map.next_value()?),
                        "dur" => event.dur = Some(map.next_value()?),
                        "id" => event.id = Some(map.next_value()?),
                        "bp" => event.bp = map.next_value()?,
                        "s" => event.scope = map.next_value()?,
                        "args" => event.args = map.next_value()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(event)
            }
        }
        deserializer.deserialize_map(V)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Args<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Args<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of arguments")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Args::default())
            }
            // Some writers have a list where there is nothing to say.
            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
                while values.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Args::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut args = Args::default();
                while let Some(Str(key)) = map.next_key::<Str<'de>>()? {
                    args.put(key, map.next_value()?);
                }
                Ok(args)
            }
        }
        deserializer.deserialize_any(V)
    }
}

impl<'a> Args<'a> {
    fn put(&mut self, key: Cow<'a, str>, value: Raw<'a>) {
        let place = match &*key {
            "External id" | "external id" => &mut self.external_id,
            "correlation" => &mut self.correlation,
            "stream" => &mut self.stream,
            "device" => &mut self.device,
            "bytes" | "Bytes" => &mut self.bytes,
            "memory bandwidth (GB/s)" => &mut self.bandwidth,
            "Ev Idx" | "Profiler Event Index" => &mut self.event_index,
            "Record function id" => &mut self.record_function,
            "Sequence number" => &mut self.sequence,
            "Fwd thread id" => &mut self.forward_thread,
            "Python id" => &mut self.python_id,
            "Python parent id" => &mut self.python_parent,
            "Python module id" => &mut self.python_module,
            "Process Group Name" => &mut self.group,
            "Seq" => &mut self.collective_sequence,
            "dtype" => &mut self.dtype,
            "Input Dims" | "Input type" | "Input Strides" | "Concrete Inputs" => {
                self.inputs.push((key, value));
                return;
            }
            _ => {
                self.rest.push((key, value));
                return;
            }
        };
        *place = Some(value);
    }
}

/// The text of a raw value: without its quotes where it is a plain text.
pub(super) fn text_of(raw: Raw<'_>) -> Cow<'_, str> {
    let text = raw.get();
    if text.starts_with('"') {
        if !text.contains('\\') {
            return Cow::Borrowed(&text[1..text.len() - 1]);
        }
        if let Ok(Str(unescaped)) = serde_json::from_str::<Str<'_>>(text) {
            return unescaped;
        }
    }
    Cow::Borrowed(text)
}

/// An integer: a number without a fraction, or a text of one. Unsigned 64-bit integers keep their bits.
pub(super) fn int_of(raw: Raw<'_>) -> Option<i64> {
    let text = raw.get();
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let value = text.parse::<i64>().ok().or_else(|| text.parse::<u64>().ok().map(|value| value as i64));
    // The smallest integer stands for none.
    value.filter(|value| *value != i64::MIN)
}

/// Objects of arguments as compact text.
pub(super) fn object(text: &mut String, fields: &[(Cow<'_, str>, Raw<'_>)]) {
    text.clear();
    text.push('{');
    for (at, (key, value)) in fields.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        if key.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
            text.push_str(&serde_json::to_string(key).expect("a text is JSON"));
        } else {
            text.push('"');
            text.push_str(key);
            text.push('"');
        }
        text.push(':');
        text.push_str(value.get());
    }
    text.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_borrows_and_keeps_what_it_does_not_know() {
        let text = r#"{"ph": "X", "name": "a\nb", "cat": null, "pid": 1, "tid": "stream 7", "ts": "12.5", "zzz": [{}],
            "args": {"External id": 7, "grid": [1, 2], "Input Dims": [[]], "q\"": 1, "correlation": 18446744073709551615}}"#;
        let event: Event<'_> = serde_json::from_str(text).unwrap();
        assert_eq!((&*event.ph.0, &*event.name.0, event.cat.is_none()), ("X", "a\nb", true));
        assert_eq!((text_of(event.pid.unwrap()), text_of(event.tid.unwrap())), ("1".into(), "stream 7".into()));
        assert_eq!(text_of(event.ts.unwrap()), "12.5");
        assert_eq!(int_of(event.args.external_id.unwrap()), Some(7));
        assert_eq!(int_of(event.args.correlation.unwrap()), Some(-1));
        let mut rest = String::new();
        object(&mut rest, &event.args.rest);
        assert_eq!(rest, r#"{"grid":[1, 2],"q\"":1}"#);
    }
}
