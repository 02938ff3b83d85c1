//! What inference keeps of a model's values: less than training, in the type that was asked for.

use std::fmt;
use std::str::FromStr;

use tensor::{DType, Kernels, Tensor};

use crate::params::{ParamDescr, ParamId, Weights};

/// The type in which a model's values are kept for inference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InferenceDtype {
    /// Everything in `f32`.
    #[default]
    F32,
    /// Matrices, tables and activations in `bf16`; sums in `f32`.
    Bf16,
    /// The matrices of the layers in 8-bit integers with a scale for each output, to which activations are rounded row by row
    /// at run time; tables in `bf16`; the head and activations in `f32`.
    Int8,
}

impl InferenceDtype {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// The type of activations between operators.
    pub fn activations(self) -> DType {
        match self {
            Self::F32 | Self::Int8 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }

    /// The lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Arranges one parameter as inference reads it. `is_linear` tells matrices that only `linear` reads from tables.
    pub(crate) fn arrange(
        self,
        kernels: &dyn Kernels,
        descriptor: &ParamDescr,
        is_linear: bool,
        tensor: Tensor,
    ) -> Tensor {
        // The reference kernels, which compute in `f64`, have no types of storage.
        let stores = kernels.dtype() == DType::F32;
        match (self, is_linear) {
            (Self::Int8, true) if !descriptor.is_head() => kernels.quantize(&tensor),
            (Self::F32 | Self::Int8, true) => kernels.prepack(&tensor),
            (Self::Bf16, true) if stores => kernels.prepack(&rounded(kernels, tensor)),
            (Self::Bf16, true) => kernels.prepack(&tensor),
            (Self::Bf16 | Self::Int8, false) if stores && descriptor.is_matrix() => rounded(kernels, tensor),
            _ => tensor,
        }
    }
}

fn rounded(kernels: &dyn Kernels, tensor: Tensor) -> Tensor {
    let mut rounded = kernels.pool().kept(DType::BF16, tensor.shape());
    kernels.cast(&tensor, &mut rounded);
    rounded
}

impl fmt::Display for InferenceDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not one of [`InferenceDtype`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a type for inference; there are f32, bf16 and int8")]
pub struct UnknownDtype(String);

impl FromStr for InferenceDtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| UnknownDtype(name.into()))
    }
}

impl Weights {
    /// Leaves only what inference reads, in the type asked for, and gives the memory of the rest back to the system. `linear`
    /// are the matrices that only `linear` reads ([`Encoder::packable`](crate::Encoder::packable)).
    pub fn for_inference(&mut self, kernels: &dyn Kernels, linear: &[ParamId], dtype: InferenceDtype) {
        self.replace(|id, descriptor, tensor| dtype.arrange(kernels, descriptor, linear.contains(&id), tensor));
        kernels.pool().release_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for dtype in InferenceDtype::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        let error = "fp16".parse::<InferenceDtype>().unwrap_err().to_string();
        assert_eq!(error, "`fp16` is not a type for inference; there are f32, bf16 and int8");
    }
}
