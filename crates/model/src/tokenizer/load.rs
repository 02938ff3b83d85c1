//! Building a tokenizer from whichever files a directory has.

use super::TokenizerError;
use super::config::{Config, read_object};
use crate::files::read_text;
use std::path::Path;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, Tokenizer, decoders};

/// Longest vocabulary file read. The `tokenizer.json` of a 256,000-token vocabulary takes 33 MB.
const MAX_BYTES: u64 = 256 << 20;

pub(super) fn load(dir: &Path, config: &Config) -> Result<Tokenizer, TokenizerError> {
    let has = |name: &str| dir.join(name).is_file();
    if has("tokenizer.json") {
        let path = dir.join("tokenizer.json");
        let text = read_text(&path, MAX_BYTES)?;
        return Tokenizer::from_bytes(text).map_err(|e| invalid(&path, e.to_string()));
    }
    let mut tokenizer = if has("vocab.json") && has("merges.txt") {
        byte_level_bpe(dir, config)?
    } else if has("vocab.txt") {
        word_piece(dir, config)?
    } else {
        return Err(TokenizerError::NotFound { dir: dir.into() });
    };
    add_tokens(&dir.join("added_tokens.json"), &mut tokenizer)?;
    Ok(tokenizer)
}

fn invalid(path: &Path, problem: impl Into<String>) -> TokenizerError {
    TokenizerError::Invalid { path: path.into(), problem: problem.into() }
}

/// The name of a control token and its id in the vocabulary at `path`.
fn special(
    vocab: &Vocab,
    path: &Path,
    config: &Config,
    role: &str,
    usual: &str,
) -> Result<(String, u32), TokenizerError> {
    let token = config.special_token(role).unwrap_or_else(|| usual.into());
    let id = vocab.get(&token).copied();
    let id = id.ok_or_else(|| invalid(path, format!("it lacks the control token `{token}`, the model's {role}")))?;
    Ok((token, id))
}

/// GPT-2's and RoBERTa's tokenizer: `vocab.json` maps tokens to ids, `merges.txt` ranks the pairs to join.
fn byte_level_bpe(dir: &Path, config: &Config) -> Result<Tokenizer, TokenizerError> {
    let (vocab_path, merges_path) = (dir.join("vocab.json"), dir.join("merges.txt"));
    let vocab: std::collections::HashMap<String, u32> =
        serde_json::from_str(&read_text(&vocab_path, MAX_BYTES)?).map_err(|e| invalid(&vocab_path, e.to_string()))?;
    let vocab: Vocab = vocab.into_iter().collect();
    let merges = parse_merges(&read_text(&merges_path, MAX_BYTES)?).map_err(|e| invalid(&merges_path, e))?;
    let roberta = config.is_roberta().unwrap_or_else(|| vocab.contains_key("<s>") && vocab.contains_key("</s>"));
    let prefix_space = config.flag("add_prefix_space").unwrap_or(false);

    let model = BPE::builder().vocab_and_merges(vocab.clone(), merges).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|e| invalid(&merges_path, e.to_string()))?);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(prefix_space, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::new(true, true, true)));
    let mut tokens = Vec::new();
    if roberta {
        let special = |role, usual| special(&vocab, &vocab_path, config, role, usual);
        let (cls, sep) = (special("cls_token", "<s>")?, special("sep_token", "</s>")?);
        for (role, usual) in [("pad_token", "<pad>"), ("unk_token", "<unk>")] {
            tokens.push(AddedToken::from(special(role, usual)?.0, true).normalized(true));
        }
        tokens.extend([&cls, &sep].map(|(token, _)| AddedToken::from(token.clone(), true).normalized(true)));
        // The mask takes the space before it, so that "a <mask>" is a word and its successor.
        tokens.push(AddedToken::from(special("mask_token", "<mask>")?.0, true).lstrip(true));
        let processor = RobertaProcessing::new(sep, cls).trim_offsets(true).add_prefix_space(prefix_space);
        tokenizer.with_post_processor(Some(processor));
    } else {
        let end = special(&vocab, &vocab_path, config, "eos_token", "<|endoftext|>")?.0;
        tokens.push(AddedToken::from(end, true).normalized(true));
        tokenizer.with_post_processor(Some(ByteLevel::new(true, false, true)));
    }
    tokenizer.add_special_tokens(tokens).map_err(|e| invalid(&vocab_path, e.to_string()))?;
    Ok(tokenizer)
}

/// One pair a line, separated by a space, most frequent first; a first line that starts with `#version` is a comment.
fn parse_merges(text: &str) -> Result<Merges, String> {
    let lines =
        text.lines().enumerate().filter(|(i, line)| !(line.is_empty() || *i == 0 && line.starts_with("#version")));
    let pair = |(i, line): (usize, &str)| match line.split_once(' ') {
        Some((a, b)) if !b.contains(' ') => Ok((a.to_owned(), b.to_owned())),
        _ => Err(format!("line {}: {line:?} is not a pair of tokens", i + 1)),
    };
    lines.map(pair).collect()
}

/// BERT's tokenizer: `vocab.txt` has one token a line, its id is the line's number from 0.
fn word_piece(dir: &Path, config: &Config) -> Result<Tokenizer, TokenizerError> {
    let path = dir.join("vocab.txt");
    let text = read_text(&path, MAX_BYTES)?;
    let vocab: Vocab = text.lines().zip(0..).map(|(token, id)| (token.to_owned(), id)).collect();
    let special = |role, usual| special(&vocab, &path, config, role, usual);
    let unk = special("unk_token", "[UNK]")?;
    let (cls, sep) = (special("cls_token", "[CLS]")?, special("sep_token", "[SEP]")?);
    let (pad, mask) = (special("pad_token", "[PAD]")?, special("mask_token", "[MASK]")?);

    let lower_case = config.flag("do_lower_case").unwrap_or_else(|| !is_cased(&text));
    let split_chinese = config.flag("tokenize_chinese_chars").unwrap_or(true);
    let normalizer = BertNormalizer::new(true, split_chinese, config.flag("strip_accents"), lower_case);

    let model = WordPiece::builder().vocab(vocab.clone()).unk_token(unk.0.clone()).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|e| invalid(&path, e.to_string()))?);
    tokenizer.with_normalizer(Some(normalizer)).map_err(|e| invalid(&path, e.to_string()))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer.with_decoder(Some(decoders::wordpiece::WordPiece::default()));
    let tokens = [&pad, &unk, &cls, &sep, &mask].map(|(token, _)| AddedToken::from(token.clone(), true));
    tokenizer.add_special_tokens(tokens).map_err(|e| invalid(&path, e.to_string()))?;
    tokenizer.with_post_processor(Some(BertProcessing::new(sep, cls)));
    Ok(tokenizer)
}

/// Whether lower-casing would change a token, control tokens such as `[UNK]` aside. (Not whether there is an upper-case
/// letter: ℝ is one, has no lower case, and stands in uncased vocabularies.)
fn is_cased(vocab: &str) -> bool {
    vocab.lines().any(|token| !token.starts_with('[') && token.to_lowercase() != token)
}

/// Tokens added to a vocabulary after it was made: `added_tokens.json` maps them to ids.
fn add_tokens(path: &Path, tokenizer: &mut Tokenizer) -> Result<(), TokenizerError> {
    let mut added = Vec::new();
    for (token, id) in read_object(path)?.unwrap_or_default() {
        let id = id.as_u64().ok_or_else(|| invalid(path, format!("the id of `{token}` is not a whole number")))?;
        added.push((id, token));
    }
    added.sort();
    for (id, token) in added {
        if tokenizer.token_to_id(&token).is_none() {
            tokenizer.add_tokens([AddedToken::from(token.clone(), false)]).map_err(|e| invalid(path, e.to_string()))?;
        }
        if tokenizer.token_to_id(&token).map(u64::from) != Some(id) {
            return Err(invalid(
                path,
                format!("`{token}` has the id {id}, which does not follow the vocabulary's last"),
            ));
        }
    }
    Ok(())
}
