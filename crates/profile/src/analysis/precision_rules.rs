//! What names and types say of a kernel's precision.

/// A precision; the order is that of ties in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Precision {
    Fp64,
    Fp32,
    Tf32,
    Fp16,
    Bf16,
    Fp8,
    Fp4,
    Int64,
    Int32,
    Int16,
    Int8,
    Int4,
    Bool,
    Complex,
    Unknown,
}

use Precision::*;

impl Precision {
    pub(super) const ALL: [Precision; 15] =
        [Fp64, Fp32, Tf32, Fp16, Bf16, Fp8, Fp4, Int64, Int32, Int16, Int8, Int4, Bool, Complex, Unknown];

    pub(super) fn word(self) -> &'static str {
        match self {
            Fp64 => "FP64",
            Fp32 => "FP32",
            Tf32 => "TF32",
            Fp16 => "FP16",
            Bf16 => "BF16",
            Fp8 => "FP8",
            Fp4 => "FP4",
            Int64 => "INT64",
            Int32 => "INT32",
            Int16 => "INT16",
            Int8 => "INT8",
            Int4 => "INT4",
            Bool => "BOOL",
            Complex => "complex",
            Unknown => "unknown",
        }
    }

    fn is_floating(self) -> bool {
        matches!(self, Fp64 | Fp32 | Tf32 | Fp16 | Bf16 | Fp8 | Fp4 | Complex)
    }
}

/// The precision of an element type as PyTorch, NCCL or our recorder write it: `float`, `c10::BFloat16`, `Half`, `f32`, `long int`.
pub(super) fn of_dtype(dtype: &str) -> Option<Precision> {
    let lower = dtype.trim().to_ascii_lowercase();
    let bare = lower.trim_start_matches("torch.").trim_start_matches("c10::").trim_start_matches("nccl");
    Some(match bare {
        "double" | "float64" | "f64" | "fp64" => Fp64,
        "float" | "float32" | "f32" | "fp32" => Fp32,
        "tf32" => Tf32,
        "half" | "float16" | "f16" | "fp16" => Fp16,
        "bfloat16" | "bf16" => Bf16,
        "long" | "long int" | "long long" | "int64" | "int64_t" | "i64" | "uint64" | "unsigned long" | "u64" => Int64,
        "int" | "int32" | "int32_t" | "i32" | "uint32" | "unsigned int" | "u32" => Int32,
        "short" | "short int" | "int16" | "i16" | "uint16" | "u16" => Int16,
        "char" | "signed char" | "unsigned char" | "byte" | "int8" | "int8_t" | "i8" | "uint8" | "u8" | "qint8"
        | "quint8" => Int8,
        "int4" | "i4" | "uint4" | "u4" => Int4,
        "bool" => Bool,
        _ if bare.starts_with("float8") || bare.starts_with("fp8") || bare.starts_with("f8") => Fp8,
        _ if bare.starts_with("float4") || bare.starts_with("fp4") => Fp4,
        _ if bare.contains("complex") => Complex,
        _ => return None,
    })
}

/// The precision of an operator with these operands (Kineto's `Input type`): the first floating type, else the first type.
pub(super) fn of_operands<'t>(types: impl Iterator<Item = &'t str>) -> Option<Precision> {
    let mut first = None;
    for precision in types.filter_map(of_dtype) {
        if precision.is_floating() {
            return Some(precision);
        }
        first = first.or(Some(precision));
    }
    first
}

/// What the name of a kernel says.
pub(super) fn of_name(name: &str) -> Option<Precision> {
    let lower = name.to_ascii_lowercase();
    // NCCL moves bytes in SendRecv, whatever they are, and calls them int8_t.
    if lower.starts_with("nccl") && lower.contains("sendrecv") {
        return None;
    }
    if let Some(rest) = lower.strip_prefix("cijk_") {
        return of_tensile(rest);
    }
    let words = || lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    // The narrow type decides: wide ones beside it are accumulators and scales.
    if let Some(narrow) = words().find_map(narrow) {
        return Some(narrow);
    }
    let (template, parameters) = split(&lower);
    floating(template)
        .or_else(|| words().find_map(matrix_kernel))
        .or_else(|| words().find_map(of_nccl_suffix).filter(|_| lower.starts_with("nccl")))
        .or_else(|| integer(template, false))
        .or_else(|| floating(parameters))
        .or_else(|| integer(parameters, true))
}

/// Whether the name says that the kernel uses tensor cores (matrix cores).
pub(super) fn uses_tensor_cores(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let marks = [
        "tensorop",
        "s884",
        "h884",
        "s1688",
        "h1688",
        "s16816",
        "h16816",
        "i8816",
        "i16816",
        "i16832",
        "wmma",
        "gmma",
        "hmma",
        "imma",
        "tensor16x8",
        "warpgroupsize",
        "flash_fwd",
        "flash_bwd",
        "fmha",
        "mfma",
    ];
    // Tensile names the matrix instruction, as in MI16x16x16x1 or MI16x16x1.
    let tensile = lower.starts_with("cijk_") && (lower.contains("_mi16x") || lower.contains("_mi32x"));
    tensile || marks.iter().any(|mark| lower.contains(mark))
}

/// Types below 32 bits, and TF32, as words of names: `bf16`, `c10::BFloat16`, `__half`, `f16f16`, `e4m3`, `s1688gemm`.
fn narrow(word: &str) -> Option<Precision> {
    if word.contains("bf16") || word.contains("bfloat16") {
        Some(Bf16)
    } else if ["e4m3", "e5m2", "fp8", "float8"].iter().any(|mark| word.contains(mark)) {
        Some(Fp8)
    } else if ["e2m1", "nvfp4", "mxfp4"].iter().any(|mark| word.contains(mark)) {
        Some(Fp4)
    } else if word.contains("tf32") {
        Some(Tf32)
    } else if word.contains("fp16")
        || word.contains("float16")
        || matches!(word, "half" | "half2" | "f16")
        || word.starts_with("f16f")
        || ["hgemm", "h884", "h1688", "h16816", "hcudnn"].iter().any(|mark| word.contains(mark))
    {
        Some(Fp16)
    } else {
        None
    }
}

/// Kinds of matrix and convolution kernels: `volta_sgemm_128x32_nt`, `scudnn`, `f32f32`, `s1688gemm` (TF32 unless a type is named).
fn matrix_kernel(word: &str) -> Option<Precision> {
    let has = |marks: &[&str]| marks.iter().any(|mark| word.contains(mark));
    if has(&["cgemm", "zgemm"]) {
        Some(Complex)
    } else if has(&["s1688", "s16816", "s884"]) {
        Some(Tf32)
    } else if has(&["dgemm", "dgemv", "f64f64", "fp64"]) {
        Some(Fp64)
    } else if has(&["igemm", "i8816", "i16816", "i16832", "imma", "i8i8", "s8s8"]) {
        Some(Int8)
    } else if has(&["sgemm", "sgemv", "scudnn", "f32f32", "fp32", "ffma"]) {
        Some(Fp32)
    } else {
        None
    }
}

/// `ncclDevKernel_AllReduce_Sum_f32_RING_LL`, `ncclKernel_AllReduce_RING_LL_Sum_float(...)`.
fn of_nccl_suffix(word: &str) -> Option<Precision> {
    if word == "t" { None } else { of_dtype(word) }
}

/// Tensile: the third part of `Cijk_Ailk_Bljk_HHS_BH_…` names the types of inputs, outputs and sums.
fn of_tensile(rest: &str) -> Option<Precision> {
    let types = rest.split('_').nth(2)?;
    Some(match types {
        _ if types.starts_with("f8") || types.starts_with("b8") => Fp8,
        _ if types.starts_with("i8") || types.starts_with("4xi8") => Int8,
        _ => match types.as_bytes().first()? {
            b's' if rest.contains("_mi16x16x8") && types.starts_with("sx") => Tf32,
            b's' => Fp32,
            b'h' => Fp16,
            b'b' => Bf16,
            b'd' => Fp64,
            b'c' | b'z' => Complex,
            b'i' => Int32,
            _ => return None,
        },
    })
}

/// The template arguments of a C++ name, and its parameters.
fn split(name: &str) -> (&str, &str) {
    let start = name.find(['<', '(']).map(|at| match name[at..].strip_prefix("(anonymous namespace)") {
        Some(rest) => name.len() - rest.len() + rest.find(['<', '(']).unwrap_or(rest.len()),
        None => at,
    });
    let Some(start) = start.filter(|start| *start < name.len()) else { return ("", "") };
    if name.as_bytes()[start] == b'(' {
        return ("", &name[start..]);
    }
    let mut depth = 0i32;
    let mut before = b' ';
    for (at, byte) in name.bytes().enumerate().skip(start) {
        match byte {
            b'<' => depth += 1,
            b'>' if before != b'-' => depth -= 1,
            _ => {}
        }
        before = byte;
        if depth == 0 {
            return (&name[start..at], &name[at..]);
        }
    }
    (&name[start..], "")
}

/// Words with the byte after each.
fn words_of(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut at = 0;
    let mut before = "";
    std::iter::from_fn(move || {
        let start = at + text[at..].find(is_word)?;
        let end = start + text[start..].find(|c| !is_word(c)).unwrap_or(text.len() - start);
        at = end;
        let word = &text[start..end];
        Some((std::mem::replace(&mut before, word), word, &text[end..]))
    })
}

/// The first floating type.
fn floating(text: &str) -> Option<Precision> {
    words_of(text).find_map(|(_, word, rest)| match word {
        // complex<float>
        "complex" if rest.starts_with('<') => Some(Complex),
        "float" | "float2" | "float4" | "float32_t" => Some(Fp32),
        "double" | "double2" | "float64_t" => Some(Fp64),
        _ => None,
    })
}

/// The first integer type; `unsigned int` indexes. Among parameters only what is pointed to counts.
fn integer(text: &str, pointed_to: bool) -> Option<Precision> {
    words_of(text).find_map(|(before, word, rest)| {
        let points =
            |rest: &str| rest.starts_with('*') || rest.starts_with(" const*") || rest.starts_with(" volatile*");
        if pointed_to && !points(rest) {
            return None;
        }
        match word {
            "int" | "long" if before == "unsigned" => None,
            "long" | "int64_t" | "uint64_t" => Some(Int64),
            "int" | "int32_t" | "uint32_t" => Some(Int32),
            "short" | "int16_t" => Some(Int16),
            "char" | "int8_t" | "uint8_t" => Some(Int8),
            "bool" => Some(Bool),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_precision() {
        let cases = [
            ("volta_sgemm_128x32_nt", Some(Fp32)),
            ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", Some(Fp16)),
            ("ampere_gcgemm_64x64_nt", Some(Complex)),
            ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", Some(Fp32)),
            ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1>(cutlass::Params)", Some(Tf32)),
            (
                "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1>(cutlass::Params)",
                Some(Bf16),
            ),
            ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas", Some(Bf16)),
            (
                "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_ffma_execute_kernel__5x_cublas",
                Some(Fp32),
            ),
            ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw", Some(Tf32)),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half> >(int, float)",
                Some(Fp16),
            ),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, at::detail::Array<char*, 1> >(int)",
                Some(Int32),
            ),
            ("void unrolled<CUDAFunctor_add<double>, Array<char*, 3> >(int, CUDAFunctor_add<double>)", Some(Fp64)),
            ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128>(float)", Some(Bf16)),
            (
                "void at::native::elementwise<direct_copy(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(long)#1}>(int)",
                Some(Int64),
            ),
            (
                "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 3, 64>(int)",
                None,
            ),
            ("void permute_pooled_embs_kernel<float>(float const*, long const*, long)", Some(Fp32)),
            ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Some(Fp32)),
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Some(Bf16)),
            ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)", Some(Fp32)),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", None),
            ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1", Some(Fp32)),
            ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", Some(Bf16)),
            ("triton_poi_fused_add_cos_sin_0", None),
            ("float", None),
            ("kernel<<<", None),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(of_name(name), expected, "{name}");
        }
        assert!(uses_tensor_cores(cases[4].0) && !uses_tensor_cores(cases[0].0) && !uses_tensor_cores(cases[7].0));
    }

    #[test]
    fn operands_say_theirs() {
        assert_eq!(of_operands(["Scalar", "long int", "c10::BFloat16", "float"].into_iter()), Some(Bf16));
        assert_eq!(of_operands(["long int", "Scalar", ""].into_iter()), Some(Int64));
        assert_eq!(of_operands(["", "Scalar"].into_iter()), None);
        assert_eq!(of_dtype("Float8_e4m3fn"), Some(Fp8));
        assert_eq!(of_dtype("c10::complex<float>"), Some(Complex));
    }
}
