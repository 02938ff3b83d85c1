//! From files to data sets.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::dataset::Dataset;
use super::encode::{Encode, Encoded};
use super::error::{DataError, RowError};
use super::files::expand;
use super::labels::{LabelIds, LabelMap};
use super::rows::{Label, Row, RowSpec, read_rows};
use super::targets::{NO_TAG, Target};
use crate::job::{DataTable, Keep, Sources, SplitBy, Task};
use crate::sampler::mix;

/// What became of the rows of one part of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartCounts {
    /// Examples in the data set.
    pub examples: u64,
    /// Rows read. Train and validation count the same rows where one file is split.
    pub rows: u64,
    /// Rows dropped by `keep = "ascii"`.
    pub not_ascii: u64,
    /// Rows dropped by `dedup`.
    pub duplicates: u64,
    /// Examples whose text was cut to the longest length.
    pub truncated: u64,
    /// Tokens of the longest example.
    pub longest: u64,
    /// Examples whose very text is also among the training examples; 0 for the training part itself.
    pub also_in_training: u64,
}

/// The data of a job.
#[derive(Debug)]
pub struct Loaded {
    /// What to learn from.
    pub train: Dataset,
    /// What to select the best checkpoint by.
    pub validation: Option<Dataset>,
    /// What to report on at the end.
    pub test: Option<Dataset>,
    /// The labels; none for regression.
    pub labels: LabelMap,
    /// What became of the training rows.
    pub train_counts: PartCounts,
    /// What became of the validation rows.
    pub validation_counts: Option<PartCounts>,
    /// What became of the test rows.
    pub test_counts: Option<PartCounts>,
}

/// Loads everything a job's `[data]` table names.
///
/// The labels are those of `data.label_names`, else `model_labels` (for a model that has a trained
/// head), else those that occur in the training rows, sorted.
///
/// # Errors
/// [`DataError`], naming file and line; also if no training or validation example is left.
pub fn load_job(
    table: &DataTable,
    task: Task,
    seed: u64,
    model_labels: Option<&LabelMap>,
    encoder: &dyn Encode,
) -> Result<Loaded, DataError> {
    let ids = match (&table.label_names, model_labels) {
        _ if task == Task::Regression => LabelIds::Fixed(LabelMap::default()),
        (Some(names), _) => LabelIds::Fixed(LabelMap::from_job(names)?),
        (None, Some(labels)) => LabelIds::Fixed(labels.clone()),
        (None, None) => LabelIds::Learned(HashMap::new()),
    };
    let mut loader = Loader { spec: RowSpec::new(table, task), encoder, ids, training_texts: HashSet::new() };
    let split = table.validation_split.map(|share| Split { share, by: table.validation_split_by, seed });
    let limit = table.limit.unwrap_or(usize::MAX);
    let (mut train, mut held_out) = loader.load(&table.train, Role::Training { split, limit })?;

    let (labels, new_ids) = loader.ids.settle()?;
    if let Some(new_ids) = new_ids {
        train.data.targets_mut().rename(&new_ids);
        held_out.data.targets_mut().rename(&new_ids);
    }
    loader.ids = LabelIds::Fixed(labels.clone());

    let mut load = |sources: &Sources| match sources.is_empty() {
        true => Ok(None),
        false => loader.load(sources, Role::Evaluation).map(|(part, _)| Some(part)),
    };
    let validation = if split.is_some() { Some(held_out) } else { load(&table.validation)? };
    let test = load(&table.test)?;

    for (name, part) in [("training", Some(&train)), ("validation", validation.as_ref())] {
        if let Some(part) = part.filter(|part| part.data.is_empty()) {
            return Err(DataError::NothingLeft { part: name, rows: part.counts.rows });
        }
    }
    Ok(Loaded {
        labels,
        train_counts: train.counts,
        validation_counts: validation.as_ref().map(|part| part.counts),
        test_counts: test.as_ref().map(|part| part.counts),
        train: train.data,
        validation: validation.map(|part| part.data),
        test: test.map(|part| part.data),
    })
}

/// Loads `source` (a path, a glob, or `texts.txt,labels.txt`) for a model with `labels`, read as the
/// options of `table` say. Labels the model does not have are an error.
///
/// # Errors
/// [`DataError`], naming file and line.
pub fn load_for_eval(
    source: &str,
    table: &DataTable,
    task: Task,
    labels: &LabelMap,
    encoder: &dyn Encode,
) -> Result<(Dataset, PartCounts), DataError> {
    let ids = LabelIds::Fixed(labels.clone());
    let mut loader = Loader { spec: RowSpec::new(table, task), encoder, ids, training_texts: HashSet::new() };
    let (part, _) = loader.load(&Sources(vec![source.to_owned()]), Role::Evaluation)?;
    Ok((part.data, part.counts))
}

struct Part {
    data: Dataset,
    counts: PartCounts,
}

#[derive(Clone, Copy)]
struct Split {
    share: f64,
    by: SplitBy,
    seed: u64,
}

impl Split {
    /// Whether a row is held out for validation.
    fn holds_out(&self, row: u64, text: TextHash) -> bool {
        let draw = match self.by {
            SplitBy::TextHash => (text >> 64) as u64,
            SplitBy::Seed => mix(mix(self.seed) ^ row),
        };
        (draw as f64 / 2f64.powi(64)) < self.share
    }
}

#[derive(Clone, Copy)]
enum Role {
    Training { split: Option<Split>, limit: usize },
    Evaluation,
}

/// The first half of the SHA-256 of a text: the same for the same text in every version and on every machine.
type TextHash = u128;

struct Loader<'a> {
    spec: RowSpec<'a>,
    encoder: &'a dyn Encode,
    ids: LabelIds,
    training_texts: HashSet<TextHash>,
}

impl Loader<'_> {
    /// The rows of `sources`, and those held out from them.
    fn load(&mut self, sources: &Sources, role: Role) -> Result<(Part, Part), DataError> {
        let table = self.spec.table;
        let part = || Part { data: Dataset::new(self.spec.task), counts: PartCounts::default() };
        let (mut main, mut held_out) = (part(), part());
        let mut shared = PartCounts::default();
        let mut seen = HashSet::new();
        let Self { spec, encoder, ids, training_texts } = self;
        for file in expand(sources, table.format, spec.task)? {
            read_rows(&file, spec, &mut |row| {
                shared.rows += 1;
                if table.keep == Keep::Ascii && !is_ascii(&row) {
                    shared.not_ascii += 1;
                    return Ok(());
                }
                let hash = text_hash(&row);
                if table.dedup && !seen.insert(hash) {
                    shared.duplicates += 1;
                    return Ok(());
                }
                let part = match role {
                    Role::Training { split: Some(split), .. } if split.holds_out(shared.rows, hash) => &mut held_out,
                    Role::Training { limit, .. } if main.data.len() >= limit => return Ok(()),
                    Role::Training { .. } => {
                        training_texts.insert(hash);
                        &mut main
                    }
                    Role::Evaluation => {
                        main.counts.also_in_training += u64::from(training_texts.contains(&hash));
                        &mut main
                    }
                };
                let encoded = push(&mut part.data, &row, *encoder, ids)?;
                part.counts.examples += 1;
                part.counts.truncated += u64::from(encoded.truncated);
                part.counts.longest = part.counts.longest.max(encoded.ids.len() as u64);
                Ok(())
            })?;
        }
        for counts in [&mut main.counts, &mut held_out.counts] {
            counts.rows = shared.rows;
            counts.not_ascii = shared.not_ascii;
            counts.duplicates = shared.duplicates;
        }
        Ok((main, held_out))
    }
}

/// Encodes a row and adds it to `data`.
fn push(data: &mut Dataset, row: &Row, encoder: &dyn Encode, ids: &mut LabelIds) -> Result<Encoded, RowError> {
    match row {
        Row::Text { text, pair, label } => {
            let encoded = encoder.text(text, pair.as_deref()).map_err(RowError::Encode)?;
            match label {
                Label::One(name) => data.push(&encoded, Target::Class(ids.id(name)?)),
                Label::Many(names) => {
                    let mut labels = names.iter().map(|name| ids.id(name)).collect::<Result<Vec<_>, _>>()?;
                    labels.sort_unstable();
                    labels.dedup();
                    data.push(&encoded, Target::Labels(&labels));
                }
                Label::Score(score) => data.push(&encoded, Target::Score(*score)),
            }
            Ok(encoded)
        }
        Row::Words { words, tags } => {
            if words.len() != tags.len() {
                return Err(RowError::UnequalTags { words: words.len(), tags: tags.len() });
            }
            let word_tags = tags.iter().map(|tag| ids.id(tag)).collect::<Result<Vec<_>, _>>()?;
            let encoded = encoder.words(words).map_err(RowError::Encode)?;
            let mut token_tags = vec![NO_TAG; encoded.ids.len()];
            let mut word_before = None;
            for (tag, &word) in token_tags.iter_mut().zip(&encoded.words) {
                if let Some(&word_tag) =
                    word.filter(|_| word != word_before).and_then(|word| word_tags.get(word as usize))
                {
                    *tag = word_tag;
                }
                word_before = word;
            }
            data.push(&encoded, Target::Tags(&token_tags));
            Ok(encoded)
        }
    }
}

fn is_ascii(row: &Row) -> bool {
    match row {
        Row::Text { text, pair, .. } => text.is_ascii() && pair.as_deref().is_none_or(str::is_ascii),
        Row::Words { words, .. } => words.iter().all(|word| word.is_ascii()),
    }
}

fn text_hash(row: &Row) -> TextHash {
    let mut hash = Sha256::new();
    // A length before each part keeps ("ab", "c") and ("a", "bc") apart.
    let mut update = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    match row {
        Row::Text { text, pair, .. } => {
            update(text);
            pair.iter().for_each(|pair| update(pair));
        }
        Row::Words { words, .. } => words.iter().for_each(|word| update(word)),
    }
    let digest = hash.finalize();
    digest.iter().take(16).fold(0, |value, byte| value << 8 | u128::from(*byte))
}
