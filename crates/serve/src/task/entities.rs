//! Entities of a text, from the labels of its tokens: the aggregation strategies of transformers' token classification.
//!
//! Scores are softmax probabilities. Offsets count characters (Unicode scalar values), as Python's strings do.

use model::scores::{ScoreFunction, best};
use model::{ModelConfig, tokenizer::Tokenizer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::engine::Answer;

/// How tokens become words and words entities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Aggregation {
    /// Every token alone.
    #[default]
    None,
    /// Neighbouring tokens of one label are an entity.
    Simple,
    /// As simple, over words that take the label of their first token.
    First,
    /// As simple, over words that take the label of their tokens' mean scores.
    Average,
    /// As simple, over words that take the label of their surest token.
    Max,
}

/// A token, or several that make an entity.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Entity {
    /// The label of a single token; absent under aggregation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// The label of an entity without `B-` or `I-`; absent without aggregation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_group: Option<String>,
    /// How sure the model is, from 0 to 1: the mean over the entity's tokens or words.
    pub score: f64,
    /// The number of the token in the model's input; absent under aggregation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// The token as in the vocabulary; under aggregation what stands in the text.
    pub word: String,
    /// First character in the text.
    pub start: usize,
    /// Character after the last.
    pub end: usize,
}

/// A token, or the tokens of a word, with a score for every label.
struct Piece {
    start: usize,
    end: usize,
    label: usize,
    score: f64,
}

/// The entities of a text, without those whose label is ignored.
pub fn entities(
    config: &ModelConfig,
    tokenizer: &Tokenizer,
    text: &str,
    answer: &Answer,
    aggregation: Aggregation,
    ignored: &[String],
) -> Vec<Entity> {
    let tokens = tokens(tokenizer, text, answer);
    let characters = Characters::of(text);
    let is_ignored = |label: &str| ignored.iter().any(|ignored| ignored == label);
    if aggregation == Aggregation::None {
        let entity = |token: Token| {
            let (label, score) = best(&token.scores)?;
            let label = config.labels.get(label).filter(|label| !is_ignored(label))?;
            Some(Entity {
                entity: Some(label.clone()),
                entity_group: None,
                score,
                index: Some(token.index),
                word: token.text,
                start: characters.before(token.start),
                end: characters.before(token.end),
            })
        };
        return tokens.into_iter().filter_map(entity).collect();
    }
    let pieces = pieces(tokens, aggregation);
    let groups = group(&pieces, &config.labels);
    let entity = |(label, pieces): (&str, &[Piece])| {
        let (first, last) = (pieces.first()?, pieces.last()?);
        Some(Entity {
            entity: None,
            entity_group: Some(label.to_string()),
            score: pieces.iter().map(|piece| piece.score).sum::<f64>() / pieces.len() as f64,
            index: None,
            word: text.get(first.start..last.end)?.to_string(),
            start: characters.before(first.start),
            end: characters.before(last.end),
        })
    };
    groups.into_iter().filter(|(label, _)| !is_ignored(label)).filter_map(entity).collect()
}

struct Token {
    index: usize,
    text: String,
    /// In bytes.
    start: usize,
    end: usize,
    /// Whether it continues the word of the token before.
    continues: bool,
    scores: Vec<f64>,
}

/// The tokens of the text, without the control tokens around it.
fn tokens(tokenizer: &Tokenizer, text: &str, answer: &Answer) -> Vec<Token> {
    let prefix = tokenizer.continuing_prefix();
    let unknown = tokenizer.special_ids().unk;
    let token = |(index, row): (usize, &[f32])| {
        let (start, end) = answer.encoding.offsets[index];
        let id = answer.encoding.ids[index];
        if answer.encoding.special[index] {
            return None;
        }
        let name = tokenizer.id_to_token(id).unwrap_or_default();
        let continues = match prefix {
            _ if unknown == Some(id) => false,
            Some(prefix) => name.starts_with(prefix),
            None => {
                let (before, after) = text.split_at_checked(start).unwrap_or_default();
                start > 0 && !before.ends_with(' ') && !after.starts_with(' ')
            }
        };
        Some(Token { index, text: name, start, end, continues, scores: ScoreFunction::Softmax.apply(row) })
    };
    answer.rows.iter().enumerate().filter_map(token).collect()
}

/// Tokens, or under the strategies for words their words.
fn pieces(tokens: Vec<Token>, aggregation: Aggregation) -> Vec<Piece> {
    let mut words: Vec<Vec<Token>> = Vec::new();
    for token in tokens {
        match words.last_mut() {
            Some(word) if token.continues && aggregation != Aggregation::Simple => word.push(token),
            _ => words.push(vec![token]),
        }
    }
    words.iter().filter_map(|word| piece(word, aggregation)).collect()
}

fn piece(word: &[Token], aggregation: Aggregation) -> Option<Piece> {
    let (first, last) = (word.first()?, word.last()?);
    let (label, score) = match aggregation {
        Aggregation::None | Aggregation::Simple | Aggregation::First => best(&first.scores)?,
        Aggregation::Average => {
            let mean = |label: usize| word.iter().map(|token| token.scores[label]).sum::<f64>() / word.len() as f64;
            best(&(0..first.scores.len()).map(mean).collect::<Vec<_>>())?
        }
        Aggregation::Max => {
            word.iter().filter_map(|token| best(&token.scores)).reduce(|a, b| if b.1 > a.1 { b } else { a })?
        }
    };
    Some(Piece { start: first.start, end: last.end, label, score })
}

/// Runs of pieces with one label; a `B-` begins another.
fn group<'a>(pieces: &'a [Piece], labels: &'a [String]) -> Vec<(&'a str, &'a [Piece])> {
    let tag = |piece: &Piece| -> (bool, &'a str) {
        let label = labels.get(piece.label).map_or("", String::as_str);
        match (label.strip_prefix("B-"), label.strip_prefix("I-")) {
            (Some(tag), _) => (true, tag),
            (None, Some(tag)) => (false, tag),
            (None, None) => (false, label),
        }
    };
    let runs = pieces.chunk_by(|before, piece| {
        let (begins, name) = tag(piece);
        !begins && name == tag(before).1
    });
    runs.map(|run| (tag(&run[0]).1, run)).collect()
}

/// Turns byte offsets into counts of characters.
struct Characters(Option<Vec<usize>>);

impl Characters {
    fn of(text: &str) -> Self {
        // In ASCII they are the same.
        Self((!text.is_ascii()).then(|| text.char_indices().map(|(byte, _)| byte).collect()))
    }

    fn before(&self, byte: usize) -> usize {
        self.0.as_ref().map_or(byte, |starts| starts.partition_point(|&start| start < byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(start: usize, end: usize, continues: bool, scores: [f64; 3]) -> Token {
        Token { index: 0, text: String::new(), start, end, continues, scores: scores.into() }
    }

    fn labels() -> Vec<String> {
        ["O", "B-PER", "I-PER"].map(String::from).into()
    }

    fn summary(tokens: Vec<Token>, aggregation: Aggregation) -> Vec<(String, usize, usize, f64)> {
        let (pieces, labels) = (pieces(tokens, aggregation), labels());
        let shown = |(label, run): (&str, &[Piece])| {
            let score = run.iter().map(|piece| piece.score).sum::<f64>() / run.len() as f64;
            (label.to_string(), run[0].start, run[run.len() - 1].end, (score * 1e6).round() / 1e6)
        };
        group(&pieces, &labels).into_iter().map(shown).collect()
    }

    /// "Ada Lovelace", the second word in two tokens that disagree.
    fn ada() -> Vec<Token> {
        vec![
            token(0, 3, false, [0.1, 0.8, 0.1]),
            token(4, 8, false, [0.2, 0.1, 0.7]),
            token(8, 12, true, [0.9, 0.0, 0.1]),
        ]
    }

    #[test]
    fn simple_joins_tokens_and_lets_a_word_fall_apart() {
        let expected = [("PER".into(), 0, 8, 0.75), ("O".into(), 8, 12, 0.9)];
        assert_eq!(summary(ada(), Aggregation::Simple), expected);
    }

    #[test]
    fn words_take_their_label_from_the_first_the_mean_or_the_surest_token() {
        assert_eq!(summary(ada(), Aggregation::First), [("PER".into(), 0, 12, 0.75)]);
        assert_eq!(summary(ada(), Aggregation::Average), [("PER".into(), 0, 3, 0.8), ("O".into(), 4, 12, 0.55)]);
        assert_eq!(summary(ada(), Aggregation::Max), [("PER".into(), 0, 3, 0.8), ("O".into(), 4, 12, 0.9)]);
    }

    #[test]
    fn a_b_begins_another_entity() {
        let tokens = vec![token(0, 3, false, [0.0, 1.0, 0.0]), token(4, 7, false, [0.0, 1.0, 0.0])];
        assert_eq!(summary(tokens, Aggregation::Simple).len(), 2);
    }

    #[test]
    fn offsets_count_characters() {
        let characters = Characters::of("é😀x");
        assert_eq!([0, 2, 6, 7].map(|byte| characters.before(byte)), [0, 1, 2, 3]);
        assert_eq!(Characters::of("abc").before(2), 2);
    }
}
