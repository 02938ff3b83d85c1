//! Attention as its formula, in `f64`: what the tiles are tested against.

use crate::kernels::{AttentionShape, Dropout};

/// One `[q | k | v]` matrix with its sequences.
pub struct Naive<'a> {
    pub shape: AttentionShape,
    pub qkv: &'a [f64],
    pub offsets: &'a [u32],
    pub dropout: Option<&'a Dropout<'a>>,
}

impl Naive<'_> {
    fn value(&self, token: usize, column: usize) -> f64 {
        self.qkv[token * self.shape.input_columns() + column]
    }

    fn columns(&self, head: usize) -> (usize, usize, usize) {
        let AttentionShape { query_heads, key_value_heads, head_dim, .. } = self.shape;
        let group = head / (query_heads / key_value_heads);
        (head * head_dim, (query_heads + group) * head_dim, (query_heads + key_value_heads + group) * head_dim)
    }

    /// For one query: `(key token, probability, dropout factor)` of every key, and the logarithm of the denominator.
    fn probabilities(&self, start: usize, end: usize, query: usize, head: usize) -> (Vec<(usize, f64, f64)>, f64) {
        let (q, k, _) = self.columns(head);
        let end = if self.shape.causal { query + 1 } else { end };
        let score = |key: usize| {
            let dot: f64 = (0..self.shape.head_dim).map(|d| self.value(query, q + d) * self.value(key, k + d)).sum();
            dot * self.shape.scale()
        };
        let scores: Vec<f64> = (start..end).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = most + scores.iter().map(|s| (s - most).exp()).sum::<f64>().ln();
        let factor = |key: usize| {
            self.dropout.map_or(1.0, |dropout| {
                let column = Dropout::attention_column(head, key - start);
                let dropped = dropout.stream.word(dropout.rows[query], column) < dropout.threshold();
                if dropped { 0.0 } else { dropout.scale() as f64 }
            })
        };
        let entries = (start..end).zip(scores).map(|(key, s)| (key, (s - log_sum).exp(), factor(key))).collect();
        (entries, log_sum)
    }

    fn for_each(&self, mut work: impl FnMut(usize, usize, Vec<(usize, f64, f64)>, f64)) {
        for bounds in self.offsets.windows(2) {
            let (start, end) = (bounds[0] as usize, bounds[1] as usize);
            for query in start..end {
                for head in 0..self.shape.query_heads {
                    let (entries, log_sum) = self.probabilities(start, end, query, head);
                    work(query, head, entries, log_sum);
                }
            }
        }
    }

    /// Output and logarithms of the denominators.
    pub fn forward(&self) -> (Vec<f64>, Vec<f64>) {
        let (tokens, dim) = (self.qkv.len() / self.shape.input_columns(), self.shape.head_dim);
        let mut y = vec![0.0; tokens * self.shape.output_columns()];
        let mut log_sums = vec![0.0; tokens * self.shape.query_heads];
        self.for_each(|query, head, entries, log_sum| {
            log_sums[query * self.shape.query_heads + head] = log_sum;
            let v = self.columns(head).2;
            for (key, probability, factor) in entries {
                for d in 0..dim {
                    y[query * self.shape.output_columns() + head * dim + d] +=
                        probability * factor * self.value(key, v + d);
                }
            }
        });
        (y, log_sums)
    }

    /// The gradient of the input.
    pub fn backward(&self, dy: &[f64]) -> Vec<f64> {
        let (dim, width, scale) = (self.shape.head_dim, self.shape.input_columns(), self.shape.scale());
        let mut dqkv = vec![0.0; self.qkv.len()];
        self.for_each(|query, head, entries, _| {
            let (q, k, v) = self.columns(head);
            let dy = &dy[query * self.shape.output_columns() + head * dim..][..dim];
            let gradient = |key: usize, factor: f64| -> f64 {
                factor * (0..dim).map(|d| dy[d] * self.value(key, v + d)).sum::<f64>()
            };
            let delta: f64 = entries.iter().map(|&(key, p, factor)| p * gradient(key, factor)).sum();
            for &(key, probability, factor) in &entries {
                let ds = probability * (gradient(key, factor) - delta) * scale;
                for d in 0..dim {
                    dqkv[key * width + v + d] += probability * factor * dy[d];
                    dqkv[query * width + q + d] += ds * self.value(key, k + d);
                    dqkv[key * width + k + d] += ds * self.value(query, q + d);
                }
            }
        });
        dqkv
    }
}
