//! Writing a tokenizer so that `transformers` and this library open it.

use super::{Tokenizer, TokenizerError};
use crate::files::{FileError, atomic};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Written as they are when the source directory has them; tools that do not read `tokenizer.json` need them.
const VOCABULARY_FILES: [&str; 4] = ["vocab.txt", "vocab.json", "merges.txt", "added_tokens.json"];

impl Tokenizer {
    /// Writes the tokenizer to the directory `dir`: `tokenizer.json` without padding and truncation;
    /// `tokenizer_config.json`, that of the source directory or else a small one that tells `model_max_length`; and
    /// the source directory's `special_tokens_map.json` and vocabulary files, where it has them.
    ///
    /// `transformers.AutoTokenizer.from_pretrained(dir)` then gives the same ids as
    /// [`Options::allow_special_tokens`](super::Options::allow_special_tokens).
    ///
    /// # Errors
    /// [`TokenizerError::File`] naming the file that cannot be read or written.
    pub fn save(&self, dir: &Path, model_max_length: usize) -> Result<(), TokenizerError> {
        let json = self.inner.to_string(true).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        atomic::write(&dir.join("tokenizer.json"), |f| f.write_all(json.as_bytes()))?;
        match &self.config.tokenizer_config {
            Some(config) => write_json(&dir.join("tokenizer_config.json"), config)?,
            None => write_json(&dir.join("tokenizer_config.json"), &self.minimal_config(model_max_length))?,
        }
        if let Some(map) = &self.config.special_tokens_map {
            write_json(&dir.join("special_tokens_map.json"), map)?;
        }
        for name in VOCABULARY_FILES {
            let (from, to) = (self.source.join(name), dir.join(name));
            if from.is_file() && from != to {
                let mut source = File::open(&from).map_err(|e| FileError::io("open", &from, e))?;
                atomic::write(&to, |f| io::copy(&mut source, f).map(drop))?;
            }
        }
        Ok(())
    }

    /// The roles of the control tokens, and the class that takes everything else from `tokenizer.json`.
    fn minimal_config(&self, model_max_length: usize) -> Map<String, Value> {
        let ids = self.special_ids();
        let roles = [
            ("pad_token", ids.pad),
            ("unk_token", ids.unk),
            ("cls_token", ids.cls),
            ("sep_token", ids.sep),
            ("mask_token", ids.mask),
            ("bos_token", ids.bos),
            ("eos_token", ids.eos),
        ];
        let mut config = Map::new();
        config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        config.insert("model_max_length".into(), json!(model_max_length));
        for (role, id) in roles {
            if let Some(token) = id.and_then(|id| self.id_to_token(id)) {
                config.insert(role.into(), json!(token));
            }
        }
        config
    }
}

fn write_json(path: &Path, value: &Map<String, Value>) -> Result<(), FileError> {
    atomic::write(path, |f| {
        serde_json::to_writer_pretty(&mut *f, value)?;
        f.write_all(b"\n")
    })
}
