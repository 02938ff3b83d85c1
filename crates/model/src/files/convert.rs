//! Little-endian file bytes to `f32` and back.

use super::{FileDType, SaveDType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Elements converted at a time: the staging buffers stay in the first-level cache.
const CHUNK: usize = 2048;

/// Converts `bytes` (any alignment) to `out`; the caller has made sure that they hold `out.len()` elements of `dtype`.
/// Returns false for a dtype that is not one of F32, F64, F16, BF16, and then leaves `out` alone.
pub(super) fn read_f32(dtype: FileDType, bytes: &[u8], out: &mut [f32]) -> bool {
    match dtype {
        FileDType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *o = f32::from_le_bytes(*b);
            }
        }
        FileDType::F64 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *o = f64::from_le_bytes(*b) as f32;
            }
        }
        FileDType::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *o = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            }
        }
        FileDType::F16 => {
            let mut staged = [f16::ZERO; CHUNK];
            for (out, bytes) in out.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
                let staged = &mut staged[..out.len()];
                for (s, b) in staged.iter_mut().zip(bytes.as_chunks().0) {
                    *s = f16::from_le_bytes(*b);
                }
                staged.convert_to_f32_slice(out);
            }
        }
        _ => return false,
    }
    true
}

/// Feeds `data` as little-endian bytes of `dtype` to `sink`, a few kilobytes at a time. Rounding is to nearest even.
pub(super) fn write_le(
    data: &[f32],
    dtype: SaveDType,
    mut sink: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * CHUNK);
    for chunk in data.chunks(CHUNK) {
        bytes.clear();
        match dtype {
            SaveDType::F32 => bytes.extend(chunk.iter().flat_map(|x| x.to_le_bytes())),
            SaveDType::Bf16 => bytes.extend(chunk.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
            SaveDType::F16 => bytes.extend(chunk.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
        }
        sink(&bytes)?;
    }
    Ok(())
}

/// The first finite value that would become infinite in `dtype`.
pub(super) fn first_overflow(data: &[f32], dtype: SaveDType) -> Option<f32> {
    let overflows = |x: f32| match dtype {
        SaveDType::F32 => false,
        SaveDType::Bf16 => x.is_finite() && !bf16::from_f32(x).is_finite(),
        SaveDType::F16 => x.is_finite() && !f16::from_f32(x).is_finite(),
    };
    data.iter().copied().find(|&x| overflows(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(dtype: SaveDType, file: FileDType, values: &[f32]) -> Vec<f32> {
        // One byte in front makes every element unaligned.
        let mut bytes = vec![0xff];
        write_le(values, dtype, |b| {
            bytes.extend_from_slice(b);
            Ok(())
        })
        .unwrap();
        let mut out = vec![f32::NAN; values.len()];
        assert!(read_f32(file, &bytes[1..], &mut out));
        out
    }

    #[test]
    fn every_format_returns_what_it_can_hold() {
        // Exact in all three formats, and more than one staging chunk long.
        let values: Vec<f32> = (0..CHUNK + 3).map(|i| (i % 97) as f32 * 0.5 - 20.0).collect();
        assert_eq!(round_trip(SaveDType::F32, FileDType::F32, &values), values);
        assert_eq!(round_trip(SaveDType::F16, FileDType::F16, &values), values);
        assert_eq!(round_trip(SaveDType::Bf16, FileDType::BF16, &values), values);
    }

    #[test]
    fn special_values_survive() {
        for (dtype, file) in
            [(SaveDType::F32, FileDType::F32), (SaveDType::F16, FileDType::F16), (SaveDType::Bf16, FileDType::BF16)]
        {
            let out = round_trip(dtype, file, &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -0.0]);
            assert_eq!(out[..2], [f32::INFINITY, f32::NEG_INFINITY]);
            assert!(out[2].is_nan() && out[3] == 0.0 && out[3].is_sign_negative());
        }
    }

    #[test]
    fn doubles_are_rounded_and_integers_refused() {
        let mut out = [0.0];
        assert!(read_f32(FileDType::F64, &std::f64::consts::PI.to_le_bytes(), &mut out));
        assert_eq!(out, [std::f32::consts::PI]);
        assert!(!read_f32(FileDType::I32, &[1, 0, 0, 0], &mut out));
        assert_eq!(out, [std::f32::consts::PI]);
    }

    #[test]
    fn overflow_is_found_before_writing() {
        assert_eq!(first_overflow(&[1.0, f32::INFINITY, 70000.0], SaveDType::F16), Some(70000.0));
        assert_eq!(first_overflow(&[1.0, 70000.0], SaveDType::Bf16), None);
        assert_eq!(first_overflow(&[f32::MAX], SaveDType::Bf16), Some(f32::MAX));
        assert_eq!(first_overflow(&[f32::MAX], SaveDType::F32), None);
    }
}
