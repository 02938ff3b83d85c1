//! The same numbers as PyTorch and transformers: outputs, loss, every gradient tensor, and twenty AdamW updates, from
//! whole batches and from the micro-batches of gradient accumulation.
//!
//! The references are tiny models computed in float64: `../shared/parity`, and those of `bench/reference`, which cover
//! the other heads, losses and forms of GELU. Bounds are those of their READMEs: 1e-5 absolute on outputs and loss, 1e-4
//! relative on each gradient, 1e-3 relative on the losses of the updates.

mod case;

use case::{Case, Source, numbers};
use model::{Gradients, Pass, Tape};
use tensor::{CpuKernels, DType, Kernels, ReferenceKernels};
use trace::recorder::Lane;
use train::{Adamw, AdamwConfig, Prepared, Updater};

const OUTPUT_BOUND: f64 = 1e-5;
const GRADIENT_BOUND: f64 = 1e-4;
const UPDATE_LOSS_BOUND: f64 = 1e-3;
/// The READMEs state none for the norms of the updates; they get that of the losses.
const UPDATE_NORM_BOUND: f64 = 1e-3;

fn check(source: Source, name: &str, kernels: &dyn Kernels) {
    let Some(mut case) = Case::open(source, name, kernels) else { return };
    let cut = case.expected.micro_batches.clone();
    check_first_batch(&case, &case.whole(0), kernels);
    check_first_batch(&case, &case.cut(0, &cut), kernels);
    check_gelu_pair(&case, kernels);
    check_updates(&mut case, kernels, |case, index| case.whole(index));
    if let Some(mut fresh) = Case::open(source, name, kernels) {
        check_updates(&mut fresh, kernels, |case, index| case.cut(index, &cut));
    }
}

fn largest_difference(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn check_first_batch(case: &Case, micro_batches: &[Prepared], kernels: &dyn Kernels) {
    let expected = &case.expected;
    let mut gradients = Gradients::new(&case.model.weights, kernels, |_| true);
    let step = case.step(kernels, micro_batches, &mut gradients);
    let outputs = largest_difference(&step.outputs, &numbers(&expected.logits));
    let loss = (step.loss - expected.loss).abs();
    let gradient = case.gradient_difference(&gradients);
    let norm = (Adamw::gradient_norm(&gradients, kernels) / expected.grad_norm - 1.0).abs();
    let parts = micro_batches.len();
    eprintln!("{} part(s): outputs {outputs:.1e}, loss {loss:.1e}, gradients {gradient:.1e}, norm {norm:.1e}", parts);
    assert!(outputs <= OUTPUT_BOUND, "outputs differ by {outputs:.2e}");
    assert!(loss <= OUTPUT_BOUND, "loss {} instead of {}", step.loss, expected.loss);
    assert!(norm <= GRADIENT_BOUND, "the gradient's norm differs by {norm:.2e}");
}

/// The two forms of GELU are different functions, and each is the one that its name asks for.
fn check_gelu_pair(case: &Case, kernels: &dyn Kernels) {
    let Some(exact) = &case.expected.logits_with_exact_gelu else { return };
    let exact = numbers(exact);
    assert!(largest_difference(&exact, &numbers(&case.expected.logits)) > 5.0 * OUTPUT_BOUND);
    let encoder = case.encoder_with_exact_gelu();
    let [prepared] = &case.whole(0)[..] else { panic!("a whole batch is one part") };
    let (weights, batch) = (&case.model.weights, &prepared.batch);
    let pass = Pass { kernels, weights, batch, dtype: kernels.dtype(), randomness: None };
    let ours = encoder.forward(&mut Tape::inference(pass)).tensor.to_vec_f64();
    let difference = largest_difference(&ours, &exact);
    assert!(difference <= OUTPUT_BOUND, "outputs with the exact form differ by {difference:.2e}");
}

/// Twenty updates as a job makes them; embeddings have none.
fn check_updates(case: &mut Case, kernels: &dyn Kernels, parts: impl Fn(&Case, usize) -> Vec<Prepared>) {
    let Some(adamw) = case.expected.adamw.take() else { return };
    let config = AdamwConfig {
        betas: adamw.betas,
        eps: adamw.eps,
        weight_decay: adamw.weight_decay,
        clip_norm: Some(adamw.clip_norm),
    };
    let gradients = Gradients::new(&case.model.weights, kernels, |_| true);
    let optimizer = Adamw::new(config, &case.model.weights, &gradients, kernels);
    let loss = case.loss.clone();
    let mut updater = Updater { loss, gradients, optimizer, dtype: kernels.dtype(), seed: 0 };
    let batches: Vec<Vec<Prepared>> = (0..case.expected.batches.len()).map(|index| parts(case, index)).collect();
    let (mut worst_loss, mut worst_norm): (f64, f64) = (0.0, 0.0);
    assert_eq!(adamw.loss_and_grad_norm.len(), 20);
    for (step, &(loss, norm)) in adamw.loss_and_grad_norm.iter().enumerate() {
        let update =
            updater.update(&mut case.model, &batches[step % batches.len()], adamw.lr, kernels, &Lane::off()).unwrap();
        let (loss_error, norm_error) = ((update.loss / loss - 1.0).abs(), (update.gradient_norm / norm - 1.0).abs());
        assert!(loss_error <= UPDATE_LOSS_BOUND, "loss of step {step}: {}, expected {loss}", update.loss);
        assert!(norm_error <= UPDATE_NORM_BOUND, "norm of step {step}: {}, expected {norm}", update.gradient_norm);
        (worst_loss, worst_norm) = (worst_loss.max(loss_error), worst_norm.max(norm_error));
    }
    eprintln!("20 updates: losses {worst_loss:.1e}, norms {worst_norm:.1e}");
}

macro_rules! parity {
    ($source:ident: $($test:ident = $case:literal),*) => {$(
        mod $test {
            use super::*;

            #[test]
            fn reference_kernels() {
                check(Source::$source, $case, &ReferenceKernels::new());
            }

            #[test]
            fn cpu_kernels() {
                check(Source::$source, $case, &CpuKernels::new(2));
            }
        }
    )*};
}

parity!(Shared: bert = "bert-cls", roberta = "roberta-cls", distilbert = "distilbert-cls");
parity!(Own:
    bert_multi_label = "bert-multi-label",
    bert_regression = "bert-regression",
    bert_tokens = "bert-token-cls",
    roberta_tokens = "roberta-token-cls",
    distilbert_tokens = "distilbert-token-cls",
    bert_gelu_new = "bert-gelu-new",
    distilbert_gelu_tanh = "distilbert-gelu-tanh",
    bert_class_weights = "bert-class-weights",
    roberta_label_smoothing = "roberta-label-smoothing",
    bert_embedding = "bert-embedding-mean",
    roberta_embedding = "roberta-embedding-mean",
    distilbert_embedding = "distilbert-embedding-cls"
);

#[test]
fn working_copies_in_bf16_stay_near_the_reference() {
    let kernels = CpuKernels::new(2);
    let Some(mut case) = Case::open(Source::Shared, "roberta-cls", &kernels) else { return };
    case.model.weights.keep_working_copies(&kernels, DType::BF16);
    let [prepared] = &case.whole(0)[..] else { panic!("a whole batch is one part") };
    let logits = case.model.infer(&kernels, &prepared.batch, DType::BF16).to_vec_f64();
    let difference = largest_difference(&logits, &numbers(&case.expected.logits));
    assert!(difference <= 0.05, "logits differ by {difference:.2e}");
}
