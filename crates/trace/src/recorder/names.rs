//! What events are called. A name is made beforehand, once; events carry its number.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

/// The name of spans, kernels and other events, with the names of the values they carry. Cheap to copy.
///
/// Names are kept as long as the process lives: make them of what is known beforehand, in a `static` or when a program
/// starts. What depends on the data goes through [`Lane::span_of`](super::Lane::span_of) or
/// [`Lane::annotation`](super::Lane::annotation), which keep nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name(u32);

/// A value over time: what is counted, which of its series, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counter(pub(super) Name);

/// What a [`Name`] stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Description {
    pub text: String,
    /// Names of the values.
    pub values: Vec<String>,
    pub series: String,
    pub unit: Option<String>,
}

struct Names {
    all: Vec<Arc<Description>>,
    numbers: FxHashMap<Arc<Description>, u32>,
}

static NAMES: Mutex<Option<Names>> = Mutex::new(None);

impl Name {
    /// The name `text`.
    pub fn new(text: &str) -> Self {
        Self::of(Description { text: text.into(), ..Description::default() })
    }

    /// The name `text` of events with values of these names, such as `linear` with `rows`, `in` and `out`.
    pub fn with_values(text: &str, values: &[&str]) -> Self {
        let values = values.iter().map(|&value| value.into()).collect();
        Self::of(Description { text: text.into(), values, ..Description::default() })
    }

    fn of(description: Description) -> Self {
        // Numbers are handed out after the name is kept, so a panic elsewhere leaves the list whole.
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get_or_insert_with(|| Names { all: Vec::new(), numbers: FxHashMap::default() });
        if let Some(&number) = names.numbers.get(&description) {
            return Name(number);
        }
        let (number, description) = (names.all.len() as u32, Arc::new(description));
        names.all.push(description.clone());
        names.numbers.insert(description, number);
        Name(number)
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

impl Counter {
    /// The counter `name`, or its series `series` where it has several, of values in `unit`.
    pub fn new(name: &str, series: &str, unit: &str) -> Self {
        let unit = Some(unit.into());
        Self(Name::of(Description { text: name.into(), values: Vec::new(), series: series.into(), unit }))
    }
}

/// A reader's copy of the names, which asks for new ones only when it meets one.
#[derive(Default)]
pub(super) struct Known(Vec<Arc<Description>>);

impl Known {
    /// The name with this number; none for a number that no name has.
    pub fn get(&mut self, number: u32) -> Option<Arc<Description>> {
        if self.0.len() <= number as usize {
            let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
            let known = self.0.len();
            self.0.extend(names.iter().flat_map(|names| &names.all[known..]).cloned());
        }
        self.0.get(number as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once_and_comes_back() {
        let (a, b) = (Name::new("a name"), Name::with_values("a name", &["rows", "columns"]));
        assert_eq!(a, Name::new("a name"));
        assert_ne!(a, b);
        let mut known = Known::default();
        assert_eq!(known.get(b.number()).unwrap().values, ["rows", "columns"]);
        assert_eq!(known.get(a.number()).unwrap().text, "a name");
        assert!(known.get(u32::MAX).is_none());
        let counter = Counter::new("pool", "live", "B");
        assert_eq!(known.get(counter.0.number()).unwrap().unit.as_deref(), Some("B"));
    }
}
