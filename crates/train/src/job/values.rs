//! The values a job file can hold beyond numbers and strings.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What the model's head predicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// One label for each text.
    #[default]
    Classification,
    /// Any number of labels for each text.
    MultiLabel,
    /// One number for each text.
    Regression,
    /// One label for each word.
    TokenClassification,
}

impl Task {
    /// The name used in job files.
    pub fn name(self) -> &'static str {
        match self {
            Task::Classification => "classification",
            Task::MultiLabel => "multi-label",
            Task::Regression => "regression",
            Task::TokenClassification => "token-classification",
        }
    }
}

/// Number format of working weights and saved activations; sums and master weights are f32 in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision.
    #[default]
    F32,
    /// bfloat16 storage.
    Bf16,
}

/// Shape of the learning rate after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Straight down to 0.
    #[default]
    Linear,
    /// Half a cosine down to 0.
    Cosine,
    /// Stays at its peak.
    Constant,
}

/// Format of a data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// By the file's name.
    #[default]
    Auto,
    /// Tab-separated values, no quoting: a quote is a character like any other.
    Tsv,
    /// Comma-separated values, quoted as in RFC 4180.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// A file of texts and a file of labels, one a line (the TweetEval layout).
    Pair,
    /// One word and its tag a line, a blank line between sentences.
    Conll,
}

/// Which rows to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Every row.
    #[default]
    All,
    /// Rows whose text is pure ASCII.
    Ascii,
}

/// What decides on which side of the train/validation split a row falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitBy {
    /// A hash of the text: equal texts fall on one side, whatever the seed and the order of the rows.
    #[default]
    TextHash,
    /// The job's seed and the row's number.
    Seed,
}

/// Data files: paths or globs, one or a list. `texts.txt,labels.txt` names a pair of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(pub Vec<String>);

impl Sources {
    /// Whether no file is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Sources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Sources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrList("a path, a glob or a list of them")).map(Self)
    }
}

/// A column of a delimited file by name or by index from 0, or a field of a JSON object by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Column {
    /// Position from 0.
    Index(usize),
    /// Name in the header row, or JSON field.
    Name(String),
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Column::Index(index) => write!(f, "{index}"),
            Column::Name(name) => write!(f, "`{name}`"),
        }
    }
}

impl<'de> Deserialize<'de> for Column {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ColumnVisitor;

        impl Visitor<'_> for ColumnVisitor {
            type Value = Column;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column name or an index from 0")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Column, E> {
                Ok(Column::Name(name.to_owned()))
            }

            fn visit_i64<E: de::Error>(self, index: i64) -> Result<Column, E> {
                usize::try_from(index)
                    .map(Column::Index)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(index), &self))
            }

            fn visit_u64<E: de::Error>(self, index: u64) -> Result<Column, E> {
                usize::try_from(index)
                    .map(Column::Index)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(index), &self))
            }
        }

        deserializer.deserialize_any(ColumnVisitor)
    }
}

/// Names of the labels, in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LabelNames {
    /// A file of `id TAB name` lines.
    File(PathBuf),
    /// The names themselves.
    List(Vec<String>),
}

impl<'de> Deserialize<'de> for LabelNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;

        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = LabelNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of names or the path of a mapping file")
            }

            fn visit_str<E: de::Error>(self, path: &str) -> Result<LabelNames, E> {
                Ok(LabelNames::File(path.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<LabelNames, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(LabelNames::List)
            }
        }

        deserializer.deserialize_any(NamesVisitor)
    }
}

/// Weight of each label in the cross-entropy.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ClassWeights {
    /// All labels weigh 1.
    #[default]
    Equal,
    /// `n / (k · n_c)`: every label contributes the same in sum.
    Balanced,
    /// One weight for each label, in the order of their ids.
    List(Vec<f64>),
}

impl Serialize for ClassWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ClassWeights::Equal => serializer.serialize_str("equal"),
            ClassWeights::Balanced => serializer.serialize_str("balanced"),
            ClassWeights::List(weights) => weights.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ClassWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WeightsVisitor;

        impl<'de> Visitor<'de> for WeightsVisitor {
            type Value = ClassWeights;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"equal\", \"balanced\" or a list of numbers")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<ClassWeights, E> {
                match word {
                    "equal" => Ok(ClassWeights::Equal),
                    "balanced" => Ok(ClassWeights::Balanced),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<ClassWeights, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(ClassWeights::List)
            }
        }

        deserializer.deserialize_any(WeightsVisitor)
    }
}

/// Reads a string or a list of strings as a list.
struct TextOrList(&'static str);

impl<'de> Visitor<'de> for TextOrList {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, one: &str) -> Result<Vec<String>, E> {
        Ok(vec![one.to_owned()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<String>, A::Error> {
        Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))
    }
}
