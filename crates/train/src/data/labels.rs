//! Names of labels and their ids.

use std::collections::HashMap;
use std::path::Path;

use super::encoding::TextEncoding;
use super::error::{DataError, RowError};
use super::rows::{lines, read_text};
use crate::job::{LabelNames, nearest};

/// The most labels a data set may have.
pub const MAX_LABELS: usize = 10_000;

/// The most known labels listed in a message.
const MAX_LISTED: usize = 20;

/// Labels in the order of their ids.
///
/// ```
/// use train::data::LabelMap;
///
/// let labels = LabelMap::new(vec!["negative".to_owned(), "positive".to_owned()])?;
/// assert_eq!(labels.id("positive"), Some(1));
/// assert_eq!(labels.id("1"), Some(1)); // an id stands for its label
/// assert_eq!(labels.id("2"), None);
/// # Ok::<(), train::data::DataError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelMap {
    names: Vec<String>,
    ids: HashMap<String, u32>,
    /// Whether an id in the data stands for its label: not where names are numbers themselves.
    ids_are_names: bool,
}

impl LabelMap {
    /// A map from names in the order of their ids.
    ///
    /// # Errors
    /// [`DataError::LabelNames`] if a name occurs twice or there are more than [`MAX_LABELS`].
    pub fn new(names: Vec<String>) -> Result<Self, DataError> {
        let fail = |problem| DataError::LabelNames { origin: "label names".to_owned(), problem };
        if names.len() > MAX_LABELS {
            return Err(fail(format!("{} are more than the {MAX_LABELS} allowed", names.len())));
        }
        let mut ids = HashMap::with_capacity(names.len());
        for (id, name) in (0..).zip(&names) {
            if ids.insert(name.clone(), id).is_some() {
                return Err(fail(format!("`{name}` occurs twice")));
            }
        }
        let ids_are_names = !names.iter().any(|name| name.parse::<i64>().is_ok());
        Ok(Self { names, ids, ids_are_names })
    }

    /// A map from what a job says.
    ///
    /// # Errors
    /// As [`LabelMap::new`] and [`LabelMap::from_file`].
    pub fn from_job(names: &LabelNames) -> Result<Self, DataError> {
        match names {
            LabelNames::List(names) => Self::new(names.clone()),
            LabelNames::File(path) => Self::from_file(path),
        }
    }

    /// Reads a mapping file: `id TAB name` lines in any order, ids from 0 without a gap, UTF-8.
    ///
    /// # Errors
    /// [`DataError::LabelNames`] naming file and line.
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        let text = read_text(path, TextEncoding::Utf8)?;
        let fail = |line: usize, problem: String| DataError::LabelNames {
            origin: format!("{}:{line}", path.display()),
            problem,
        };
        let mut entries = Vec::new();
        for (line, entry) in (1..).zip(lines(&text)) {
            if entry.trim().is_empty() {
                continue;
            }
            let fields = entry.split_once('\t').map(|(id, name)| (id.trim().parse::<usize>(), name.trim()));
            let Some((Ok(id), name)) = fields else {
                return Err(fail(line, format!("`{entry}` is not an id, a tab and a name")));
            };
            entries.push((id, name.to_owned(), line));
        }
        entries.sort();
        if let Some((expected, (id, _, line))) = (0..).zip(&entries).find(|(expected, (id, ..))| expected != id) {
            return Err(fail(*line, format!("id {id} where {expected} is next; ids go from 0 without a gap")));
        }
        if entries.is_empty() {
            return Err(DataError::Empty { path: path.to_owned() });
        }
        Self::new(entries.into_iter().map(|(_, name, _)| name).collect())
    }

    /// Names in the order of the ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many labels there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none, as in regression.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The id of a label given by its name, or by its id where no name is a number.
    pub fn id(&self, label: &str) -> Option<u32> {
        let by_id = || {
            let id = label.parse::<u32>().ok().filter(|_| self.ids_are_names)?;
            ((id as usize) < self.names.len()).then_some(id)
        };
        self.ids.get(label).copied().or_else(by_id)
    }

    fn unknown(&self, label: &str) -> RowError {
        let advice = match nearest(label, self.names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let some = &self.names[..self.names.len().min(MAX_LISTED)];
                let dots = if some.len() < self.names.len() { ", …" } else { "" };
                format!("{}{dots} (from data.label_names, else from the model)", some.join(", "))
            }
        };
        RowError::UnknownLabel { label: label.to_owned(), advice }
    }
}

/// Gives ids to labels while rows are read.
pub(super) enum LabelIds {
    /// The labels are known; others are an error.
    Fixed(LabelMap),
    /// Labels are collected; their ids are in the order met until [`LabelIds::settle`].
    Learned(HashMap<String, u32>),
}

impl LabelIds {
    pub(super) fn id(&mut self, label: &str) -> Result<u32, RowError> {
        match self {
            Self::Fixed(map) => map.id(label).ok_or_else(|| map.unknown(label)),
            Self::Learned(ids) => {
                if let Some(&id) = ids.get(label) {
                    return Ok(id);
                }
                if ids.len() == MAX_LABELS {
                    return Err(RowError::TooManyLabels);
                }
                let id = ids.len() as u32;
                ids.insert(label.to_owned(), id);
                Ok(id)
            }
        }
    }

    /// The final map, and the final id of each id given so far if they differ. Learned labels are
    /// sorted: as numbers if all are whole numbers, else by their characters.
    pub(super) fn settle(self) -> Result<(LabelMap, Option<Vec<u32>>), DataError> {
        match self {
            Self::Fixed(map) => Ok((map, None)),
            Self::Learned(ids) => {
                let mut met: Vec<(String, u32)> = ids.into_iter().collect();
                let number = |name: &String| name.parse::<i64>();
                if met.iter().all(|(name, _)| number(name).is_ok()) {
                    met.sort_by_key(|(name, id)| (number(name).unwrap_or_default(), *id));
                } else {
                    met.sort();
                }
                let mut settled = vec![0; met.len()];
                for (id, (_, id_when_met)) in (0..).zip(&met) {
                    settled[*id_when_met as usize] = id;
                }
                let names = met.into_iter().map(|(name, _)| name).collect();
                Ok((LabelMap::new(names)?, Some(settled)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn mapping(text: &str) -> Result<Vec<String>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().display().to_string();
        let map = LabelMap::from_file(file.path()).map_err(|error| error.to_string().replace(&path, "map"))?;
        Ok(map.names().to_vec())
    }

    #[test]
    fn a_mapping_file_is_read_in_any_order() {
        assert_eq!(mapping("0\tnegative\r\n2\tpositive\n1\tneutral").unwrap(), ["negative", "neutral", "positive"]);
    }

    #[test]
    fn a_wrong_mapping_file_is_located() {
        assert_eq!(mapping("0\ta\n1 b\n").unwrap_err(), "map:2: `1 b` is not an id, a tab and a name");
        assert_eq!(mapping("0\ta\n2\tb\n").unwrap_err(), "map:2: id 2 where 1 is next; ids go from 0 without a gap");
        assert_eq!(mapping("0\ta\n1\ta\n").unwrap_err(), "label names: `a` occurs twice");
        assert_eq!(mapping("\n").unwrap_err(), "map holds no examples");
    }

    #[test]
    fn numbers_as_names_are_never_ids() {
        let map = LabelMap::new(vec!["1".into(), "2".into()]).unwrap();
        assert_eq!((map.id("1"), map.id("2"), map.id("0")), (Some(0), Some(1), None));
    }

    #[test]
    fn an_unknown_label_gets_the_nearest_or_all() {
        let map = LabelMap::new(vec!["negative".into(), "positive".into()]).unwrap();
        assert!(map.unknown("postive").to_string().ends_with("did you mean `positive`?"));
        assert!(
            map.unknown("7").to_string().contains("negative, positive (from data.label_names, else from the model)")
        );
    }

    #[test]
    fn learned_labels_are_sorted() {
        for (met, sorted) in [(["b", "a", "10"], ["10", "a", "b"]), (["10", "9", "-1"], ["-1", "9", "10"])] {
            let mut ids = LabelIds::Learned(HashMap::new());
            for label in met {
                ids.id(label).unwrap();
            }
            let (map, settled) = ids.settle().unwrap();
            assert_eq!(map.names(), sorted);
            for (label, id) in met.iter().zip(settled.unwrap()) {
                assert_eq!(map.id(label), Some(id));
            }
        }
    }
}
