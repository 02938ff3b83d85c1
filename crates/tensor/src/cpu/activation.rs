//! Activation functions over rows and their gradients.

use super::CpuKernels;
use super::math;
use super::parallel::{PIECE, assert_same_shape, for_pieces, parts};
use crate::dtype::Element;
use crate::kernels::Activation;
use crate::tensor::Tensor;

/// A scalar function with its derivative, chosen at compile time so that loops over it vectorise.
pub(super) trait Function: Copy + Send + Sync {
    /// The function.
    fn value(x: f32) -> f32;
    /// The function and its derivative.
    fn with_derivative(x: f32) -> (f32, f32);
}

macro_rules! function {
    ($name:ident, |$x:ident| $value:expr, $with_derivative:expr) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Function for $name {
            #[inline(always)]
            fn value($x: f32) -> f32 {
                $value
            }

            #[inline(always)]
            fn with_derivative($x: f32) -> (f32, f32) {
                $with_derivative
            }
        }
    };
}

function!(Identity, |x| x, (x, 1.0));
function!(Gelu, |x| math::gelu(x), math::gelu_with_derivative(x));
function!(GeluTanh, |x| math::gelu_tanh(x), math::gelu_tanh_with_derivative(x));
function!(Relu, |x| if x < 0.0 { 0.0 } else { x }, (Relu::value(x), if x > 0.0 { 1.0 } else { 0.0 * x }));
function!(Tanh, |x| math::tanh(x), {
    let y = math::tanh(x);
    (y, f32::mul_add(-y, y, 1.0))
});

/// Runs a block with the type alias `$F` standing for the [`Function`] of an [`Activation`].
macro_rules! with_activation {
    ($activation:expr, $F:ident => $body:expr) => {{
        use $crate::cpu::activation as functions;
        match $activation {
            $crate::kernels::Activation::Identity => {
                type $F = functions::Identity;
                $body
            }
            $crate::kernels::Activation::Gelu => {
                type $F = functions::Gelu;
                $body
            }
            $crate::kernels::Activation::GeluTanh => {
                type $F = functions::GeluTanh;
                $body
            }
            $crate::kernels::Activation::Relu => {
                type $F = functions::Relu;
                $body
            }
            $crate::kernels::Activation::Tanh => {
                type $F = functions::Tanh;
                $body
            }
        }
    }};
}

/// See [`Kernels::activation_gradient`](crate::Kernels::activation_gradient).
pub(super) fn activation_gradient(
    kernels: &CpuKernels,
    activation: Activation,
    pre: &Tensor,
    dy: &mut Tensor,
    y: Option<&mut Tensor>,
) {
    assert_same_shape(pre, dy);
    with_element!(pre.dtype(), T => with_activation!(activation, F => gradient::<T, F>(kernels, pre, dy, y)));
}

fn gradient<T: Element, F: Function>(kernels: &CpuKernels, pre: &Tensor, dy: &mut Tensor, y: Option<&mut Tensor>) {
    if let Some(y) = &y {
        assert_same_shape(pre, y);
    }
    let pre = pre.as_slice::<T>();
    let (dy, y) = (parts::<T>(dy), y.map(parts::<T>));
    for_pieces(&kernels.team, pre.len(), PIECE, |_, range| {
        // SAFETY: the ranges of the pieces are disjoint.
        let (dy, y) = unsafe { (dy.part(range.clone()), y.as_ref().map(|y| y.part(range.clone()))) };
        let pre = &pre[range];
        vectorized!(
            kernels,
            match y {
                Some(y) => {
                    for ((dy, y), &x) in dy.iter_mut().zip(y).zip(pre) {
                        let (value, derivative) = F::with_derivative(x.to_f32());
                        *y = T::from_f32(value);
                        *dy = T::from_f32(dy.to_f32() * derivative);
                    }
                }
                None => {
                    for (dy, &x) in dy.iter_mut().zip(pre) {
                        *dy = T::from_f32(dy.to_f32() * F::with_derivative(x.to_f32()).1);
                    }
                }
            }
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::oracle::{SHAPES, check};

    const ALL: [Activation; 5] =
        [Activation::Identity, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Tanh];

    #[test]
    fn gradients_and_rebuilt_outputs_match_the_reference() {
        for shape in SHAPES {
            for activation in ALL {
                check(1e-6, |case| {
                    let (pre, mut dy, mut y) =
                        (case.activation(1, &shape), case.activation(2, &shape), case.output(&shape));
                    case.kernels.activation_gradient(activation, &pre, &mut dy, Some(&mut y));
                    let mut alone = case.activation(2, &shape);
                    case.kernels.activation_gradient(activation, &pre, &mut alone, None);
                    assert_eq!(alone.to_vec_f64(), dy.to_vec_f64());
                    vec![dy, y]
                });
            }
        }
    }

    #[test]
    fn nan_passes_through_every_activation() {
        fn through<F: Function>() -> [f32; 2] {
            let (value, derivative) = F::with_derivative(f32::NAN);
            [F::value(f32::NAN), value * derivative]
        }
        for activation in ALL.into_iter().skip(1) {
            let values = with_activation!(activation, F => through::<F>());
            assert!(values.iter().all(|v| v.is_nan()), "{activation:?} {values:?}");
        }
    }
}
