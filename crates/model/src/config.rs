//! `config.json`: what a Hugging Face encoder says of itself, checked.

use serde_json::{Map, Value, json};
use tensor::Activation;

/// The architectures that are supported, as `model_type` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `bert`
    Bert,
    /// `roberta`: no token types, positions begin behind the padding id.
    Roberta,
    /// `distilbert`: no token types, no pooler.
    DistilBert,
}

/// What the classifier's outputs mean, as `problem_type` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// One of several labels: softmax.
    SingleLabel,
    /// Any of several labels: a sigmoid each.
    MultiLabel,
    /// Numbers.
    Regression,
}

/// What stands on top of the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// One row of logits per sequence.
    Sequence(Problem),
    /// One row of logits per token.
    Token,
    /// None: a pooled, normalised embedding per sequence.
    Embedding,
}

/// The shape of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// Which names and rules apply.
    pub family: Family,
    /// Rows of the word table.
    pub vocab_size: usize,
    /// Width of a token's representation.
    pub hidden: usize,
    /// Number of transformer layers.
    pub layers: usize,
    /// Attention heads; they divide `hidden`.
    pub heads: usize,
    /// Width between the two linear layers of the feed-forward network.
    pub intermediate: usize,
    /// Rows of the position table.
    pub max_positions: usize,
    /// Rows of the token-type table; 0 for none.
    pub type_vocab: usize,
    /// The padding id, behind which RoBERTa's positions begin.
    pub pad_token_id: usize,
    /// Added to the variance in every normalisation.
    pub norm_eps: f64,
    /// Of the feed-forward network.
    pub activation: Activation,
    /// Standard deviation of freshly initialised matrices.
    pub initializer_range: f64,
    /// Dropout on embeddings and residual branches.
    pub hidden_dropout: f32,
    /// Dropout on attention probabilities.
    pub attention_dropout: f32,
    /// Dropout before the classifier.
    pub classifier_dropout: f32,
}

impl EncoderConfig {
    /// The row of the position table for a sequence's first token.
    pub fn first_position(&self) -> usize {
        if self.family == Family::Roberta { self.pad_token_id + 1 } else { 0 }
    }

    /// The longest sequence, special tokens included: 512 for RoBERTa's 514 positions.
    pub fn max_tokens(&self) -> usize {
        self.max_positions - self.first_position()
    }
}

/// A model directory's `config.json`, understood.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The encoder.
    pub encoder: EncoderConfig,
    /// What stands on it.
    pub head: Head,
    /// Names of the outputs, in their order; empty for [`Head::Embedding`].
    pub labels: Vec<String>,
    /// Every key of the file, to be written back.
    raw: Map<String, Value>,
}

impl ModelConfig {
    /// Whether `problem_type` stands in the file. Without it a single output is trained as a number and, as transformers
    /// does it, answered as a probability.
    pub fn names_problem(&self) -> bool {
        self.raw.get("problem_type").is_some_and(Value::is_string)
    }
}

/// Why a `config.json` cannot be used. Messages name the key.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not an object.
    #[error("config.json is not a JSON object: {0}")]
    Syntax(String),
    /// A key is missing, of the wrong type or out of range.
    #[error("config.json: `{key}` {problem}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A model of another kind.
    #[error(
        "config.json: architecture {found} is not supported; supported are BERT, RoBERTa and DistilBERT encoders, bare or \
         with a head for sequence or token classification"
    )]
    Unsupported {
        /// What the file says.
        found: String,
    },
}

fn key_error(key: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Key { key: key.into(), problem: problem.into() }
}

/// No dimension of a model that fits a machine is larger.
const LARGEST_DIMENSION: u64 = 1 << 24;
const LARGEST_LABEL_COUNT: u64 = 1 << 16;

struct Reader<'a>(&'a Map<String, Value>);

impl Reader<'_> {
    /// A positive integer under one of several names (DistilBERT has its own), or the default.
    fn dimension(&self, names: &[&str], default: Option<usize>) -> Result<usize, ConfigError> {
        let Some((name, value)) = self.find(names) else {
            return default.ok_or_else(|| key_error(names[0], "is missing"));
        };
        match value.as_u64() {
            Some(n) if (1..=LARGEST_DIMENSION).contains(&n) => Ok(n as usize),
            _ => Err(key_error(name, format!("must be an integer from 1 to {LARGEST_DIMENSION}, found {value}"))),
        }
    }

    fn number(&self, names: &[&str], default: f64, range: std::ops::Range<f64>) -> Result<f64, ConfigError> {
        let Some((name, value)) = self.find(names) else { return Ok(default) };
        match value.as_f64() {
            Some(x) if range.contains(&x) => Ok(x),
            _ => Err(key_error(name, format!("must be a number in [{}, {}), found {value}", range.start, range.end))),
        }
    }

    fn find<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &Value)> {
        names.iter().find_map(|&name| self.0.get(name).filter(|value| !value.is_null()).map(|value| (name, value)))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }
}

impl ModelConfig {
    /// Reads the text of a `config.json`.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let raw: Map<String, Value> = serde_json::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string()))?;
        let reader = Reader(&raw);
        let architecture = raw.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
        let family = family(reader.text("model_type"), architecture)?;
        let encoder = encoder(&reader, family, architecture)?;
        let labels = labels(&raw)?;
        let head = head(architecture, reader.text("problem_type"), labels.len())?;
        let labels = if head == Head::Embedding { Vec::new() } else { labels };
        Ok(Self { encoder, head, labels, raw })
    }

    /// The same encoder under another head, for fine-tuning.
    pub fn with_head(mut self, head: Head, labels: Vec<String>) -> Self {
        self.head = head;
        self.labels = labels;
        self
    }

    /// Number of outputs of the head.
    pub fn outputs(&self) -> usize {
        self.labels.len()
    }

    /// The text of a `config.json` that transformers opens as this model; keys that were read are kept.
    pub fn to_json(&self) -> String {
        let mut raw = self.raw.clone();
        let prefix = match self.encoder.family {
            Family::Bert => "Bert",
            Family::Roberta => "Roberta",
            Family::DistilBert => "DistilBert",
        };
        let suffix = match self.head {
            Head::Sequence(_) => "ForSequenceClassification",
            Head::Token => "ForTokenClassification",
            Head::Embedding => "Model",
        };
        raw.insert("architectures".into(), json!([format!("{prefix}{suffix}")]));
        raw.insert("model_type".into(), json!(prefix.to_lowercase()));
        raw.insert("dtype".into(), json!("float32"));
        raw.remove("torch_dtype");
        raw.remove("num_labels");
        raw.remove("problem_type");
        if self.head != Head::Embedding {
            let id2label = self.labels.iter().enumerate().map(|(i, label)| (i.to_string(), json!(label)));
            raw.insert("id2label".into(), Value::Object(id2label.collect()));
            let label2id = self.labels.iter().enumerate().map(|(i, label)| (label.clone(), json!(i)));
            raw.insert("label2id".into(), Value::Object(label2id.collect()));
        }
        if let Head::Sequence(problem) = self.head {
            let name = match problem {
                Problem::SingleLabel => "single_label_classification",
                Problem::MultiLabel => "multi_label_classification",
                Problem::Regression => "regression",
            };
            raw.insert("problem_type".into(), json!(name));
        }
        let mut text = serde_json::to_string_pretty(&Value::Object(raw)).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn family(model_type: Option<&str>, architecture: Option<&str>) -> Result<Family, ConfigError> {
    let from_architecture = architecture.map(|a| a.split("For").next().unwrap_or(a).trim_end_matches("Model"));
    match model_type.or(from_architecture).map(str::to_lowercase).as_deref() {
        Some("bert") => Ok(Family::Bert),
        Some("roberta") => Ok(Family::Roberta),
        Some("distilbert") => Ok(Family::DistilBert),
        other => Err(ConfigError::Unsupported { found: architecture.or(other).unwrap_or("(none named)").into() }),
    }
}

fn encoder(reader: &Reader, family: Family, architecture: Option<&str>) -> Result<EncoderConfig, ConfigError> {
    let distil = family == Family::DistilBert;
    let hidden = reader.dimension(&["hidden_size", "dim"], None)?;
    let heads = reader.dimension(&["num_attention_heads", "n_heads"], None)?;
    if hidden % heads != 0 {
        return Err(key_error("num_attention_heads", format!("{heads} does not divide the hidden size {hidden}")));
    }
    if let Some(kind) = reader.text("position_embedding_type").filter(|kind| *kind != "absolute") {
        return Err(key_error("position_embedding_type", format!("`{kind}` is not supported, only `absolute`")));
    }
    if reader.0.get("is_decoder").and_then(Value::as_bool) == Some(true) {
        return Err(key_error("is_decoder", "is true: decoders are not supported, only encoders"));
    }
    let default_pad = if family == Family::Roberta { 1.0 } else { 0.0 };
    let pad_token_id = reader.number(&["pad_token_id"], default_pad, 0.0..LARGEST_DIMENSION as f64)? as usize;
    let max_positions = reader.dimension(&["max_position_embeddings"], Some(512))?;
    if family == Family::Roberta && max_positions < pad_token_id + 3 {
        let problem = format!("{max_positions} leaves no room for a token behind pad_token_id {pad_token_id}");
        return Err(key_error("max_position_embeddings", problem));
    }
    let rate = |names: &[&str], default: f64| reader.number(names, default, 0.0..1.0).map(|x| x as f32);
    let hidden_dropout = rate(&["hidden_dropout_prob", "dropout"], 0.1)?;
    // DistilBERT has a rate of its own for sequences, and none but the general one for tokens.
    let for_tokens = architecture.is_some_and(|a| a.ends_with("ForTokenClassification"));
    let classifier_names: &[&str] = match (distil, for_tokens) {
        (false, _) => &["classifier_dropout"],
        (true, false) => &["seq_classif_dropout"],
        (true, true) => &[],
    };
    let classifier_default = if distil && !for_tokens { 0.2 } else { hidden_dropout as f64 };
    Ok(EncoderConfig {
        family,
        vocab_size: reader.dimension(&["vocab_size"], None)?,
        hidden,
        layers: reader.dimension(&["num_hidden_layers", "n_layers"], None)?,
        heads,
        intermediate: reader.dimension(&["intermediate_size", "hidden_dim"], None)?,
        max_positions,
        type_vocab: if distil { 0 } else { reader.dimension(&["type_vocab_size"], Some(2))? },
        pad_token_id,
        norm_eps: reader.number(&["layer_norm_eps"], 1e-12, 0.0..1.0)?,
        activation: activation(reader)?,
        initializer_range: reader.number(&["initializer_range"], 0.02, 0.0..10.0)?,
        hidden_dropout,
        attention_dropout: rate(&["attention_probs_dropout_prob", "attention_dropout"], 0.1)?,
        classifier_dropout: rate(classifier_names, classifier_default)?,
    })
}

fn activation(reader: &Reader) -> Result<Activation, ConfigError> {
    let Some((key, value)) = reader.find(&["hidden_act", "activation"]) else { return Ok(Activation::Gelu) };
    match value.as_str() {
        Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Ok(Activation::GeluTanh),
        Some("relu") => Ok(Activation::Relu),
        _ => Err(key_error(
            key,
            format!("{value} is not supported; supported are gelu, gelu_new, gelu_pytorch_tanh, relu"),
        )),
    }
}

/// `id2label` in the order of its ids, which must be `0..n`; else `num_labels` unnamed ones; else transformers' two.
fn labels(raw: &Map<String, Value>) -> Result<Vec<String>, ConfigError> {
    let Some(map) = raw.get("id2label").and_then(Value::as_object) else {
        let count = raw.get("num_labels").and_then(Value::as_u64).unwrap_or(2);
        if !(1..=LARGEST_LABEL_COUNT).contains(&count) {
            return Err(key_error("num_labels", format!("must be from 1 to {LARGEST_LABEL_COUNT}, found {count}")));
        }
        return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
    };
    let label = |id: usize| {
        let value = map.get(&id.to_string());
        let text = value.and_then(Value::as_str).map(String::from);
        text.ok_or_else(|| key_error("id2label", format!("has {} entries but no name for id {id}", map.len())))
    };
    (0..map.len()).map(label).collect()
}

fn head(architecture: Option<&str>, problem: Option<&str>, outputs: usize) -> Result<Head, ConfigError> {
    let Some(architecture) = architecture else { return Ok(Head::Embedding) };
    if architecture.ends_with("ForTokenClassification") {
        return Ok(Head::Token);
    }
    if !architecture.ends_with("ForSequenceClassification") {
        // Pretraining heads are dropped; the encoder beneath is what counts.
        let known = ["Model", "ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction"];
        let bare = known.iter().any(|suffix| architecture.ends_with(suffix));
        return if bare { Ok(Head::Embedding) } else { Err(ConfigError::Unsupported { found: architecture.into() }) };
    }
    match problem {
        None if outputs == 1 => Ok(Head::Sequence(Problem::Regression)),
        None | Some("single_label_classification") => Ok(Head::Sequence(Problem::SingleLabel)),
        Some("multi_label_classification") => Ok(Head::Sequence(Problem::MultiLabel)),
        Some("regression") => Ok(Head::Sequence(Problem::Regression)),
        Some(other) => Err(key_error("problem_type", format!("`{other}` is not known"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROBERTA: &str = r#"{"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta",
        "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1,
        "id2label": {"0": "negative", "1": "neutral", "2": "positive"}, "custom": {"kept": true}}"#;

    #[test]
    fn roberta_has_512_usable_positions_behind_the_padding_id() {
        let config = ModelConfig::parse(ROBERTA).unwrap();
        assert_eq!((config.encoder.first_position(), config.encoder.max_tokens()), (2, 512));
        assert_eq!(config.labels, ["negative", "neutral", "positive"]);
        assert_eq!(config.head, Head::Sequence(Problem::SingleLabel));
    }

    #[test]
    fn what_is_written_reads_back_and_keeps_foreign_keys() {
        let labels = vec!["a".to_string(), "b".to_string()];
        let config =
            ModelConfig::parse(ROBERTA).unwrap().with_head(Head::Sequence(Problem::MultiLabel), labels.clone());
        let again = ModelConfig::parse(&config.to_json()).unwrap();
        assert_eq!((again.head, &again.labels), (config.head, &labels));
        assert_eq!(again.raw["custom"], json!({"kept": true}));
        assert_eq!(again.encoder, config.encoder);
    }

    #[test]
    fn errors_name_the_key() {
        let cases = [
            ("[]", "not a JSON object"),
            (r#"{"model_type": "t5"}"#, "architecture t5 is not supported"),
            (r#"{"model_type": "bert", "architectures": ["BertForQuestionAnswering"]}"#, "`hidden_size` is missing"),
            (&ROBERTA.replace("768", "-1"), "`hidden_size` must be an integer from 1"),
            (&ROBERTA.replace("\"num_attention_heads\": 12", "\"num_attention_heads\": 7"), "7 does not divide"),
            (&ROBERTA.replace("\"2\": \"positive\"", "\"3\": \"positive\""), "no name for id 2"),
            (&ROBERTA.replace("514", "3"), "leaves no room"),
            (&ROBERTA.replace("ForSequenceClassification", "ForQuestionAnswering"), "supported are BERT"),
        ];
        for (text, expected) in cases {
            let message = ModelConfig::parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}\nshould contain: {expected}");
        }
    }
}
