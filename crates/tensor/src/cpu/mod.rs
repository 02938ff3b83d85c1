//! The fast kernels: one file per concern, all over one thread team.

#[macro_use]
mod parallel;

mod activation;
mod adamw;
mod attention;
mod elementwise;
mod embedding;
mod gemm;
mod loss;
mod math;
mod norm;
#[cfg(test)]
mod oracle;
mod rows;

use crate::dtype::DType;
use crate::kernels::*;
use crate::pool::Pool;
use crate::team::Team;
use crate::tensor::Tensor;

/// `f32` kernels for CPUs, with `bf16` and `f16` as storage of activations and weights.
///
/// Sums are taken in an order that depends on shapes alone, so results do not depend on the number of threads.
pub struct CpuKernels {
    pool: Pool,
    team: Team,
    arch: pulp::Arch,
    path: gemm::Path,
}

impl CpuKernels {
    /// Kernels over a team of `threads` threads (at least 1), for the best instruction set this CPU has.
    pub fn new(threads: usize) -> Self {
        Self::with_path(threads, gemm::Path::detect())
    }

    fn with_path(threads: usize, path: gemm::Path) -> Self {
        Self { pool: Pool::new(), team: Team::new(threads), arch: pulp::Arch::new(), path }
    }
}

impl Kernels for CpuKernels {
    fn name(&self) -> String {
        gemm::name(self)
    }

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn threads(&self) -> usize {
        self.team.threads()
    }

    fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        pre: Option<&mut Tensor>,
        y: &mut Tensor,
    ) {
        gemm::linear(self, x, w, bias, activation, pre, y);
    }

    fn prepack(&self, w: &Tensor) -> Tensor {
        gemm::prepack(self, w)
    }

    fn quantize(&self, w: &Tensor) -> Tensor {
        gemm::quantize(self, w)
    }

    fn linear_input_gradient(&self, dy: &Tensor, w: &Tensor, dx: &mut Tensor, accumulate: bool) {
        gemm::linear_input_gradient(self, dy, w, dx, accumulate);
    }

    fn linear_weight_gradient(&self, dy: &Tensor, x: &Tensor, dw: &mut Tensor, accumulate: bool) {
        gemm::linear_weight_gradient(self, dy, x, dw, accumulate);
    }

    fn sum_rows(&self, x: &Tensor, sum: &mut Tensor, accumulate: bool) {
        rows::sum_rows(self, x, sum, accumulate);
    }

    fn activation_gradient(&self, activation: Activation, pre: &Tensor, dy: &mut Tensor, y: Option<&mut Tensor>) {
        activation::activation_gradient(self, activation, pre, dy, y);
    }

    fn embed_norm(&self, embedding: &Embedding, norm: &Norm, saved: Option<NormSaved>, y: &mut Tensor) {
        embedding::embed_norm(self, embedding, norm, saved, y);
    }

    fn embedding_gradient(&self, rows: &[u32], dsum: &Tensor, dtable: &mut Tensor) {
        embedding::embedding_gradient(self, rows, dsum, dtable);
    }

    fn add_norm(
        &self,
        x: &Tensor,
        dropout: Option<&Dropout>,
        residual: Option<&Tensor>,
        norm: &Norm,
        saved: Option<NormSaved>,
        y: &mut Tensor,
    ) {
        norm::add_norm(self, x, dropout, residual, norm, saved, y);
    }

    fn norm_gradient(
        &self,
        dy: &Tensor,
        normalized: &Tensor,
        inverse_deviation: &Tensor,
        gamma: &Tensor,
        dropout: Option<&Dropout>,
        dsum: &mut Tensor,
        dx: Option<&mut Tensor>,
        dgamma: &mut Tensor,
        dbeta: &mut Tensor,
        accumulate: bool,
    ) {
        let (input, statistics) = ((dy, normalized, inverse_deviation, gamma, dropout), (dgamma, dbeta, accumulate));
        norm::norm_gradient(self, input, dsum, dx, statistics);
    }

    fn attention(
        &self,
        shape: AttentionShape,
        qkv: &Tensor,
        offsets: &[u32],
        dropout: Option<&Dropout>,
        y: &mut Tensor,
        log_sum: &mut Tensor,
    ) {
        attention::attention(self, shape, qkv, offsets, dropout, y, log_sum);
    }

    fn attention_gradient(
        &self,
        shape: AttentionShape,
        qkv: &Tensor,
        y: &Tensor,
        log_sum: &Tensor,
        offsets: &[u32],
        dropout: Option<&Dropout>,
        dy: &Tensor,
        dqkv: &mut Tensor,
    ) {
        attention::attention_gradient(self, shape, qkv, y, log_sum, offsets, dropout, dy, dqkv);
    }

    fn dropout(&self, x: &Tensor, dropout: &Dropout, y: &mut Tensor) {
        elementwise::dropout(self, x, dropout, y);
    }

    fn gather_rows(&self, x: &Tensor, rows: &[u32], y: &mut Tensor) {
        rows::gather_rows(self, x, rows, y);
    }

    fn scatter_rows(&self, dy: &Tensor, rows: &[u32], dx: &mut Tensor) {
        rows::scatter_rows(self, dy, rows, dx);
    }

    fn mean_pool(&self, x: &Tensor, offsets: &[u32], y: &mut Tensor) {
        rows::mean_pool(self, x, offsets, y);
    }

    fn mean_pool_gradient(&self, dy: &Tensor, offsets: &[u32], dx: &mut Tensor) {
        rows::mean_pool_gradient(self, dy, offsets, dx);
    }

    fn normalize_rows(&self, x: &Tensor, y: &mut Tensor) {
        rows::normalize_rows(self, x, y);
    }

    fn normalize_rows_gradient(&self, x: &Tensor, dy: &Tensor, dx: &mut Tensor) {
        rows::normalize_rows_gradient(self, x, dy, dx);
    }

    fn cross_entropy(
        &self,
        logits: &Tensor,
        targets: &[i32],
        weights: Option<&[f32]>,
        smoothing: f32,
        gradient: Option<(&mut Tensor, f64)>,
    ) -> LossSum {
        loss::cross_entropy(self, logits, targets, weights, smoothing, gradient)
    }

    fn binary_cross_entropy(&self, logits: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum {
        loss::binary_cross_entropy(self, logits, targets, gradient)
    }

    fn squared_error(&self, outputs: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum {
        loss::squared_error(self, outputs, targets, gradient)
    }

    fn add_assign(&self, a: &mut Tensor, b: &Tensor) {
        elementwise::add_assign(self, a, b);
    }

    fn zero(&self, a: &mut Tensor) {
        elementwise::zero(self, a);
    }

    fn cast(&self, source: &Tensor, target: &mut Tensor) {
        elementwise::cast(self, source, target);
    }

    fn sum_of_squares(&self, tensors: &[&Tensor]) -> f64 {
        elementwise::sum_of_squares(self, tensors)
    }

    fn all_finite(&self, x: &Tensor) -> bool {
        elementwise::all_finite(self, x)
    }

    fn adamw(&self, tensors: &mut [AdamwTensor], step: &AdamwStep) {
        adamw::adamw(self, tensors, step);
    }
}
