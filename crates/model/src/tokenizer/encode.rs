//! Encoding texts.

use super::{Cut, Encoding, Tokenizer, TokenizerError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, truncate_encodings};
use tokenizers::{Model, OffsetType, PostProcessor, PreTokenizer};

/// Bytes of a text that are looked at first for each token that fits.
const BYTES_PER_TOKEN: usize = 64;
/// Tokens at the end of a beginning that are not relied on.
const SPARE_TOKENS: usize = 64;
/// Texts that a thread takes at a time.
const BATCH: usize = 64;

impl Tokenizer {
    /// Encodes a text, or a pair of texts, as at most `max_tokens` tokens, control tokens included; what does not fit is
    /// cut off the end that `cut` names, of a pair off the longer text first. The control tokens stay.
    ///
    /// # Errors
    /// [`TokenizerError::TooFewTokens`] when `max_tokens` does not even hold the control tokens.
    pub fn encode_cut(
        &self,
        text: &str,
        pair: Option<&str>,
        max_tokens: usize,
        cut: Cut,
    ) -> Result<Encoding, TokenizerError> {
        let room = self.room(max_tokens, pair.is_some())?;
        // One more than fits is enough to know that something was cut, however long the text is.
        let limit = if pair.is_none() && cut == Cut::End { room.saturating_add(1) } else { usize::MAX };
        let first = match self.enough(text, limit) {
            Some(beginning) => self.tokenize(beginning, 0, limit)?,
            None => self.tokenize(text, 0, limit)?,
        };
        let second = pair.map(|text| self.tokenize(text, 1, usize::MAX)).transpose()?;
        self.finish(first, second, room, cut)
    }

    /// Encodes one text as at most `max_tokens` tokens, control tokens included; what does not fit is cut off the
    /// text's end, the control tokens stay.
    ///
    /// # Errors
    /// [`TokenizerError::TooFewTokens`] when `max_tokens` does not even hold the control tokens.
    pub fn encode(&self, text: &str, max_tokens: usize) -> Result<Encoding, TokenizerError> {
        self.encode_cut(text, None, max_tokens, Cut::End)
    }

    /// Encodes two texts as one sequence of at most `max_tokens`; what does not fit is cut off the end of the longer
    /// text first (`longest_first` in `transformers`).
    ///
    /// # Errors
    /// [`TokenizerError::TooFewTokens`] when `max_tokens` does not even hold the control tokens.
    pub fn encode_pair(&self, first: &str, second: &str, max_tokens: usize) -> Result<Encoding, TokenizerError> {
        self.encode_cut(first, Some(second), max_tokens, Cut::End)
    }

    /// Encodes many texts on `threads` threads, this one included; the order is kept.
    ///
    /// # Errors
    /// That of the first text that [`encode`](Self::encode) refuses.
    pub fn encode_batch<S: AsRef<str> + Sync>(
        &self,
        texts: &[S],
        max_tokens: usize,
        threads: usize,
    ) -> Result<Vec<Encoding>, TokenizerError> {
        let batches: Vec<&[S]> = texts.chunks(BATCH).collect();
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel();
        let work = |sender: mpsc::Sender<_>| {
            while let Some((i, batch)) = {
                let i = next.fetch_add(1, Ordering::Relaxed);
                batches.get(i).map(|batch| (i, batch))
            } {
                let encoded: Result<Vec<_>, _> = batch.iter().map(|t| self.encode(t.as_ref(), max_tokens)).collect();
                // The receiver outlives the threads.
                let _ = sender.send((i, encoded));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(batches.len()) {
                let sender = sender.clone();
                scope.spawn(|| work(sender));
            }
            work(sender);
        });
        let mut done: Vec<_> = receiver.into_iter().collect();
        done.sort_unstable_by_key(|&(i, _)| i);
        let mut encodings = Vec::with_capacity(texts.len());
        for (_, encoded) in done {
            encodings.extend(encoded?);
        }
        Ok(encodings)
    }

    /// The beginning of a text that is far longer than `limit` tokens, if it holds that many: normalising megabytes to keep a
    /// few hundred tokens takes seconds and a gigabyte. It ends before white space, so its words are those of the text; the
    /// last of them, which might not be, is not among the tokens that are kept.
    fn enough<'t>(&self, text: &'t str, limit: usize) -> Option<&'t str> {
        self.inner.get_pre_tokenizer()?;
        let mut bytes = limit.checked_mul(BYTES_PER_TOKEN)?;
        while bytes < text.len() / 2 {
            let beginning = &text[..text.floor_char_boundary(bytes)];
            let end = beginning.rfind(char::is_whitespace)?;
            let beginning = beginning[..end].trim_end();
            if self.tokenize(beginning, 0, usize::MAX).is_ok_and(|tokens| tokens.len() > limit + SPARE_TOKENS) {
                return Some(beginning);
            }
            bytes = bytes.checked_mul(4)?;
        }
        None
    }

    /// Tokens left for text when the control tokens have been set aside.
    fn room(&self, max_tokens: usize, pair: bool) -> Result<usize, TokenizerError> {
        let special = self.inner.get_post_processor().map_or(0, |p| p.added_tokens(pair));
        max_tokens.checked_sub(special).ok_or(TokenizerError::TooFewTokens { max_tokens, special })
    }

    /// The steps before control tokens are added; may stop once there are `limit` tokens.
    fn tokenize(&self, text: &str, type_id: u32, limit: usize) -> Result<tokenizers::Encoding, TokenizerError> {
        let failed = |e: tokenizers::Error| TokenizerError::Encode(e.to_string());
        let added = self.inner.get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        let model = self.inner.get_model();
        pieces
            .tokenize_with_limit(|piece| model.tokenize(piece.get()), limit, TruncationDirection::Right)
            .map_err(failed)?;
        pieces.into_encoding(None, type_id, OffsetType::Byte).map_err(failed)
    }

    fn finish(
        &self,
        first: tokenizers::Encoding,
        second: Option<tokenizers::Encoding>,
        room: usize,
        cut: Cut,
    ) -> Result<Encoding, TokenizerError> {
        let failed = |e: tokenizers::Error| TokenizerError::Encode(e.to_string());
        let truncated = first.len() + second.as_ref().map_or(0, tokenizers::Encoding::len) > room;
        let direction = match cut {
            Cut::Start => TruncationDirection::Left,
            Cut::End => TruncationDirection::Right,
        };
        let params = TruncationParams { max_length: room, direction, ..TruncationParams::default() };
        let (mut first, mut second) = truncate_encodings(first, second, &params).map_err(failed)?;
        // The crate keeps what was cut off, and would combine every such part of one text with every one of the other.
        first.take_overflowing();
        if let Some(second) = &mut second {
            second.take_overflowing();
        }
        let encoding = self.inner.post_process(first, second, true).map_err(failed)?;
        Ok(Encoding {
            ids: encoding.get_ids().to_vec(),
            type_ids: encoding.get_type_ids().to_vec(),
            offsets: encoding.get_offsets().to_vec(),
            special: encoding.get_special_tokens_mask().iter().map(|&mask| mask == 1).collect(),
            truncated,
        })
    }
}
