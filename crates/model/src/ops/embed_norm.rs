//! The first operator of an encoder.

use tensor::{Embedding, Tensor};

use super::NormParams;
use super::add_norm::with_saved_norm;
use crate::params::{Gradients, ParamId};
use crate::tape::{InputGradient, Op, Pass, Saved};

/// `y = dropout(norm(word + position + token type))` for the batch's tokens: `[tokens, hidden]`.
pub struct EmbedNorm {
    /// `[vocabulary, hidden]`
    pub word: ParamId,
    /// `[max positions, hidden]`
    pub position: ParamId,
    /// `[token types, hidden]`; DistilBERT has none.
    pub token_type: Option<ParamId>,
    /// Scale and shift.
    pub norm: NormParams,
    /// Dropout on the output.
    pub dropout: f32,
    /// Source of the mask.
    pub site: u32,
}

impl Op for EmbedNorm {
    fn name(&self) -> &'static str {
        "embed_norm"
    }

    fn parameters(&self) -> Vec<ParamId> {
        let tables = [Some(self.word), Some(self.position), self.token_type];
        tables.into_iter().flatten().chain(self.norm.ids()).collect()
    }

    fn forward(&self, pass: &Pass, _: &[&Tensor], saved: &mut Saved) -> Tensor {
        let (batch, weights) = (pass.batch, pass.weights);
        let word = weights.get(self.word);
        let embedding = Embedding {
            ids: &batch.ids,
            positions: &batch.positions,
            types: &batch.types,
            word,
            position: weights.get(self.position),
            token_type: self.token_type.map(|id| weights.get(id)),
        };
        let shape = [batch.tokens(), word.columns()];
        let mut y = pass.empty(&shape);
        with_saved_norm(pass, &shape, saved, |norm_saved| {
            pass.kernels.embed_norm(&embedding, &self.norm.of(pass), norm_saved, &mut y);
        });
        match pass.token_dropout(self.dropout, self.site) {
            None => y,
            Some(dropout) => {
                let mut dropped = pass.empty(&shape);
                pass.kernels.dropout(&y, &dropout, &mut dropped);
                dropped
            }
        }
    }

    fn backward(&self, pass: &Pass, saved: &Saved, mut dy: Tensor, _: &mut [InputGradient], gradients: &mut Gradients) {
        let [normalized, inverse] = saved.get();
        if let Some(dropout) = pass.token_dropout(self.dropout, self.site) {
            let mut kept = pass.empty(dy.shape());
            pass.kernels.dropout(&dy, &dropout, &mut kept);
            dy = kept;
        }
        let mut dsum = pass.empty(dy.shape());
        self.norm.gradient(pass, gradients, |gamma, dgamma, dbeta, accumulate| {
            pass.kernels
                .norm_gradient(&dy, normalized, inverse, gamma, None, &mut dsum, None, dgamma, dbeta, accumulate);
        });
        let batch = pass.batch;
        let tables =
            [(Some(self.word), &batch.ids), (Some(self.position), &batch.positions), (self.token_type, &batch.types)];
        for (table, rows) in tables {
            let Some((dtable, accumulate)) = table.and_then(|id| gradients.target(id)) else { continue };
            if !accumulate {
                pass.kernels.zero(dtable);
            }
            pass.kernels.embedding_gradient(rows, &dsum, dtable);
        }
    }
}
