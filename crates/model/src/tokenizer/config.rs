//! The small JSON files beside a vocabulary.

use super::TokenizerError;
use crate::files::read_text;
use serde_json::{Map, Value};
use std::path::Path;

const MAX_BYTES: u64 = 16 << 20;

/// `tokenizer_config.json`, `special_tokens_map.json` and `config.json`; empty where a file is missing.
#[derive(Debug, Default)]
pub(super) struct Config {
    pub tokenizer_config: Option<Map<String, Value>>,
    pub special_tokens_map: Option<Map<String, Value>>,
    model: Option<Map<String, Value>>,
}

impl Config {
    pub fn read(dir: &Path) -> Result<Self, TokenizerError> {
        Ok(Self {
            tokenizer_config: read_object(&dir.join("tokenizer_config.json"))?,
            special_tokens_map: read_object(&dir.join("special_tokens_map.json"))?,
            model: read_object(&dir.join("config.json"))?,
        })
    }

    /// A boolean in `tokenizer_config.json`.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.tokenizer_config.as_ref()?.get(key)?.as_bool()
    }

    /// The token that has a role such as `cls_token`.
    pub fn special_token(&self, role: &str) -> Option<String> {
        let text = |file: &Option<Map<String, Value>>| {
            let value = file.as_ref()?.get(role)?;
            // Either the token itself, or an object that describes it.
            value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
        };
        text(&self.tokenizer_config).or_else(|| text(&self.special_tokens_map))
    }

    /// Whether the model's type or the tokenizer's class is RoBERTa's; `None` if neither is told.
    pub fn is_roberta(&self) -> Option<bool> {
        let name = |file: &Option<Map<String, Value>>, key| Some(file.as_ref()?.get(key)?.as_str()?.to_lowercase());
        let name = name(&self.model, "model_type").or_else(|| name(&self.tokenizer_config, "tokenizer_class"))?;
        Some(name.contains("roberta"))
    }
}

/// Reads a JSON object; a file that is not there is `None`.
pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, TokenizerError> {
    if !path.exists() {
        return Ok(None);
    }
    let object = serde_json::from_str(&read_text(path, MAX_BYTES)?);
    object.map(Some).map_err(|e| TokenizerError::Invalid { path: path.into(), problem: e.to_string() })
}
