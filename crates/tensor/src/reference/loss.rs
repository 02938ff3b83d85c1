//! Losses as sums, with their gradients.

use crate::kernels::LossSum;
use crate::tensor::Tensor;

pub fn cross_entropy(
    logits: &Tensor,
    targets: &[i32],
    weights: Option<&[f32]>,
    smoothing: f64,
    mut gradient: Option<(&mut Tensor, f64)>,
) -> LossSum {
    let classes = logits.columns();
    let weight = |class: usize| weights.map_or(1.0, |w| w[class] as f64);
    let mut loss = LossSum::default();
    for (row, (logits, &target)) in logits.as_slice::<f64>().chunks_exact(classes).zip(targets).enumerate() {
        // The share of each class in the smoothed target, times its weight.
        let shares: Vec<f64> = (0..classes)
            .map(|class| {
                let own = if class as i32 == target { 1.0 - smoothing } else { 0.0 };
                if target < 0 { 0.0 } else { weight(class) * (own + smoothing / classes as f64) }
            })
            .collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = largest + logits.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
        if target >= 0 {
            loss.sum += shares.iter().zip(logits).map(|(share, x)| share * (log_sum - x)).sum::<f64>();
            loss.weight += weight(target as usize);
        }
        if let Some((gradient, scale)) = &mut gradient {
            let total: f64 = shares.iter().sum();
            for (class, g) in gradient.as_mut_slice::<f64>()[row * classes..][..classes].iter_mut().enumerate() {
                *g = *scale * (total * (logits[class] - log_sum).exp() - shares[class]);
            }
        }
    }
    loss
}

/// Sums `loss(output, target).0` and stores the scaled derivatives `.1`.
pub fn elementwise(
    outputs: &Tensor,
    targets: &[f32],
    mut gradient: Option<(&mut Tensor, f64)>,
    loss: impl Fn(f64, f64) -> (f64, f64),
) -> LossSum {
    assert_eq!(outputs.len(), targets.len(), "one target for each output");
    let mut total = LossSum::default();
    for (i, (&output, &target)) in outputs.as_slice::<f64>().iter().zip(targets).enumerate() {
        let (value, derivative) = loss(output, target as f64);
        total.sum += value;
        total.weight += 1.0;
        if let Some((gradient, scale)) = &mut gradient {
            gradient.as_mut_slice::<f64>()[i] = *scale * derivative;
        }
    }
    total
}
