//! A ragged batch: the tokens there are, and where each sequence begins.

use crate::config::EncoderConfig;

/// One sequence on its way into a batch.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Token ids, special tokens included.
    pub ids: &'a [u32],
    /// Number of tokens at the front that belong to the first text of a pair; all of them for a single text.
    pub first_segment: usize,
    /// Identity within its update, the same however the update is cut into micro-batches; dropout masks depend on it.
    pub identity: u64,
}

/// Packed sequences: everything has one entry per token unless it says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Rows of the position table.
    pub positions: Vec<u32>,
    /// Rows of the token-type table.
    pub types: Vec<u32>,
    /// Identity of each token for dropout.
    pub rows: Vec<u64>,
    /// Sequence `s` is the tokens `offsets[s]..offsets[s + 1]` (one more entry than sequences).
    pub offsets: Vec<u32>,
    /// Identity of each sequence for dropout (one entry per sequence).
    pub sequence_rows: Vec<u64>,
}

impl Batch {
    /// Packs sequences for an encoder. Every sequence must be within [`EncoderConfig::max_tokens`] and its ids within
    /// the vocabulary, as the tokenizer wrapper ensures. A head for sequences reads each one's first token, so under it
    /// none may be empty; token heads and mean pooling take empty ones (no rows, and a mean of zero).
    pub fn pack<'a>(config: &EncoderConfig, sequences: impl IntoIterator<Item = Sequence<'a>>) -> Self {
        let mut batch = Self { offsets: vec![0], ..Self::default() };
        let first_position = config.first_position() as u32;
        for sequence in sequences {
            let length = sequence.ids.len() as u32;
            batch.ids.extend_from_slice(sequence.ids);
            batch.positions.extend(first_position..first_position + length);
            let type_of = |i: usize| u32::from(config.type_vocab > 1 && i >= sequence.first_segment);
            batch.types.extend((0..sequence.ids.len()).map(type_of));
            batch.rows.extend((0..u64::from(length)).map(|position| (sequence.identity << 24) | position));
            batch.offsets.push(batch.ids.len() as u32);
            batch.sequence_rows.push(sequence.identity);
        }
        batch
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The first token of every sequence: where BERT's `[CLS]` and RoBERTa's `<s>` stand.
    pub fn first_tokens(&self) -> &[u32] {
        &self.offsets[..self.sequences()]
    }
}
