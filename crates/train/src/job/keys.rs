//! Every key a job file may hold, taken from the structs that read it.

use std::sync::LazyLock;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor, value::Error};
use serde::forward_to_deserialize_any;

use super::tables::{Batch, Checkpoint, DataTable, Dropout, Evaluate, Job, Loss, Optimizer, Schedule};

/// Full paths of all keys, tables included, in the order of the manual: `model`, …, `data`, `data.train`, …
pub fn known_keys() -> &'static [String] {
    static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut keys: Vec<String> = fields_of::<Job>().iter().map(|&key| key.to_owned()).collect();
        let tables = [
            ("data", fields_of::<DataTable>()),
            ("batch", fields_of::<Batch>()),
            ("optimizer", fields_of::<Optimizer>()),
            ("schedule", fields_of::<Schedule>()),
            ("dropout", fields_of::<Dropout>()),
            ("loss", fields_of::<Loss>()),
            ("evaluate", fields_of::<Evaluate>()),
            ("checkpoint", fields_of::<Checkpoint>()),
        ];
        for (table, fields) in tables {
            keys.extend(fields.iter().map(|field| format!("{table}.{field}")));
        }
        keys
    });
    &KEYS
}

/// Whether `path` is a table, which holds keys of its own.
pub(super) fn is_table(path: &str) -> bool {
    let inside = |key: &String| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
    known_keys().iter().any(inside)
}

/// The known key a user most likely meant by `path`: the nearest in its own table, else one of the
/// same name in another table, else the nearest anywhere.
pub(super) fn nearest_key(path: &str) -> Option<&'static str> {
    let (table, name) = split(path);
    let siblings = known_keys().iter().map(String::as_str).filter(|key| split(key).0 == table);
    let namesake = || known_keys().iter().map(String::as_str).find(|key| split(key).1 == name);
    let anywhere = || nearest(path, known_keys().iter().map(String::as_str));
    siblings
        .map(|key| (distance(name, split(key).1), key))
        .filter(|&(distance, _)| close(distance, name))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, key)| key)
        .or_else(namesake)
        .or_else(anywhere)
}

/// The candidate nearest to `word`, if one is near enough to be a slip of the pen.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(distance, _)| close(distance, word))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

fn distance(a: &str, b: &str) -> usize {
    strsim::damerau_levenshtein(&a.to_lowercase(), &b.to_lowercase())
}

fn close(distance: usize, word: &str) -> bool {
    distance <= 1 + word.chars().count() / 4
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// The field names that serde's derive knows for `T`.
fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // The probe always answers with an error; the names are in `fields` by then.
    let _ = T::deserialize(FieldProbe(&mut fields));
    fields
}

/// A deserializer that only writes down which fields a struct asks for.
struct FieldProbe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldProbe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("fields noted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_table_are_known() {
        for key in ["model", "data", "data.train", "optimizer.betas", "checkpoint.keep"] {
            assert!(known_keys().iter().any(|known| known == key), "{key}");
        }
        assert!(is_table("data") && !is_table("model") && !is_table("data.train"));
    }

    #[test]
    fn the_nearest_key_is_sought_in_the_same_table_first() {
        assert_eq!(nearest_key("modle"), Some("model"));
        assert_eq!(nearest_key("optimizer.beta"), Some("optimizer.betas"));
        assert_eq!(nearest_key("optimiser"), Some("optimizer"));
        assert_eq!(nearest_key("lr"), Some("optimizer.lr"));
        assert_eq!(nearest_key("batch.batch_size_per_device"), None);
    }
}
