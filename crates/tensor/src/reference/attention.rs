//! Scaled dot-product attention (Vaswani et al., 2017), one sequence, head and query at a time.

use super::kept;
use crate::kernels::{AttentionShape, Dropout};
use crate::tensor::Tensor;

/// One query's view of the batch: where its keys are and what its probabilities become under dropout.
struct Query<'a> {
    shape: AttentionShape,
    qkv: &'a [f64],
    dropout: Option<&'a Dropout<'a>>,
    first: usize,
    token: usize,
    head: usize,
    keys: usize,
}

impl Query<'_> {
    /// Start of this head's query, or of the key or value of a token, in `qkv`.
    fn at(&self, part: usize, token: usize) -> usize {
        let s = self.shape;
        let group = self.head / (s.query_heads / s.key_value_heads);
        let column = match part {
            0 => self.head,
            1 => s.query_heads + group,
            _ => s.query_heads + s.key_value_heads + group,
        };
        token * s.input_columns() + column * s.head_dim
    }

    fn score(&self, key: usize) -> f64 {
        let (q, k) = (self.at(0, self.token), self.at(1, self.first + key));
        (0..self.shape.head_dim).map(|d| self.qkv[q + d] * self.qkv[k + d]).sum::<f64>() * self.shape.scale()
    }

    fn log_sum(&self) -> f64 {
        let scores: Vec<f64> = (0..self.keys).map(|key| self.score(key)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        largest + scores.iter().map(|s| (s - largest).exp()).sum::<f64>().ln()
    }

    fn mask(&self, key: usize) -> f64 {
        kept(self.dropout, self.token, Dropout::attention_column(self.head, key) as usize)
    }
}

fn for_each_query<'a>(
    shape: AttentionShape,
    qkv: &'a Tensor,
    offsets: &[u32],
    dropout: Option<&'a Dropout<'a>>,
    mut visit: impl FnMut(Query<'a>),
) {
    let qkv = qkv.as_slice::<f64>();
    for bounds in offsets.windows(2) {
        let (first, end) = (bounds[0] as usize, bounds[1] as usize);
        for token in first..end {
            let keys = if shape.causal { token + 1 - first } else { end - first };
            (0..shape.query_heads).for_each(|head| visit(Query { shape, qkv, dropout, first, token, head, keys }));
        }
    }
}

pub fn attention(
    shape: AttentionShape,
    qkv: &Tensor,
    offsets: &[u32],
    dropout: Option<&Dropout>,
    y: &mut Tensor,
    log_sum: &mut Tensor,
) {
    let (y, log_sum) = (y.as_mut_slice::<f64>(), log_sum.as_mut_slice::<f64>());
    for_each_query(shape, qkv, offsets, dropout, |query| {
        let log = query.log_sum();
        log_sum[query.token * shape.query_heads + query.head] = log;
        let probabilities: Vec<f64> =
            (0..query.keys).map(|key| (query.score(key) - log).exp() * query.mask(key)).collect();
        let out = (query.token * shape.query_heads + query.head) * shape.head_dim;
        for d in 0..shape.head_dim {
            let value = |key: usize| query.qkv[query.at(2, query.first + key) + d];
            y[out + d] = probabilities.iter().enumerate().map(|(key, p)| p * value(key)).sum();
        }
    });
}

pub fn attention_gradient(
    shape: AttentionShape,
    (qkv, y, log_sum): (&Tensor, &Tensor, &Tensor),
    offsets: &[u32],
    dropout: Option<&Dropout>,
    dy: &Tensor,
    dqkv: &mut Tensor,
) {
    let dqkv = dqkv.as_mut_slice::<f64>();
    dqkv.fill(0.0);
    let (y, dy, log_sum) = (y.as_slice::<f64>(), dy.as_slice::<f64>(), log_sum.as_slice::<f64>());
    for_each_query(shape, qkv, offsets, dropout, |query| {
        let index = query.token * shape.query_heads + query.head;
        let out = index * shape.head_dim;
        let delta: f64 = (0..shape.head_dim).map(|d| y[out + d] * dy[out + d]).sum();
        let q = query.at(0, query.token);
        for key in 0..query.keys {
            let (k, v) = (query.at(1, query.first + key), query.at(2, query.first + key));
            let probability = (query.score(key) - log_sum[index]).exp();
            let dropped: f64 = (0..shape.head_dim).map(|d| dy[out + d] * query.qkv[v + d]).sum();
            let dscore = probability * (dropped * query.mask(key) - delta) * shape.scale();
            for d in 0..shape.head_dim {
                dqkv[v + d] += probability * query.mask(key) * dy[out + d];
                dqkv[q + d] += dscore * query.qkv[k + d];
                dqkv[k + d] += dscore * query.qkv[q + d];
            }
        }
    });
}
