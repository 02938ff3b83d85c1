//! Packing with AVX-512: widening, pairing and 16 x 16 transposition in registers.

use std::arch::x86_64::*;
use std::ops::Range;

use super::kernel::Lane;
use super::operand::{Data, Operand};
use super::pack::Panel;

/// # Safety
/// As [`super::pack::pack`], on a CPU with AVX-512F, BW and VL.
pub unsafe fn pack(source: &Operand, outer: Range<usize>, k: Range<usize>, panel: Panel) {
    assert!(outer.end <= if source.along_k { source.rows() } else { source.pitch });
    assert!(k.end <= if source.along_k { source.pitch } else { source.rows() });
    // SAFETY: the ranges lie inside the operand; the rest is the caller's promise.
    unsafe {
        match (source.data, panel.lane) {
            (Data::F32(data), Lane::Single) => walk::<F32>(data.as_ptr(), source, outer, k, panel),
            (Data::Bf16(data), Lane::Single) => walk::<Bf16>(data.as_ptr().cast(), source, outer, k, panel),
            (Data::F16(data), Lane::Single) => walk::<F16>(data.as_ptr().cast(), source, outer, k, panel),
            (Data::Bf16(data), Lane::Pair) => walk::<Pairs>(data.as_ptr().cast(), source, outer, k, panel),
            (Data::U8(data), Lane::Quad) => walk::<Quads>(data.as_ptr().cast(), source, outer, k, panel),
            _ => unreachable!("pairs are bf16, quads are quantised rows"),
        }
    }
}

/// How sixteen lanes are read from memory.
trait Read {
    type Element;
    /// Elements in a lane.
    const WIDTH: usize;

    /// Sixteen lanes along `k`, of which `count` elements exist; the others are zero.
    ///
    /// # Safety
    /// `at` is readable at `count` elements; the CPU has AVX-512F, BW and VL.
    unsafe fn along(at: *const Self::Element, count: usize) -> __m512i;

    /// One lane of sixteen outer indices, of which those in the mask exist; `rows` elements of the lane exist.
    ///
    /// # Safety
    /// As above; each further element of a lane lies `pitch` elements behind.
    unsafe fn across(at: *const Self::Element, pitch: usize, rows: usize, mask: __mmask16) -> __m512i;
}

struct F32;
struct Bf16;
struct F16;
struct Pairs;
struct Quads;

#[inline(always)]
fn mask16(count: usize) -> __mmask16 {
    (0xffffu32 >> (16 - count.min(16))) as __mmask16
}

impl Read for F32 {
    type Element = f32;
    const WIDTH: usize = 1;

    #[inline(always)]
    unsafe fn along(at: *const f32, count: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_epi32(mask16(count), at.cast()) }
    }

    #[inline(always)]
    unsafe fn across(at: *const f32, _: usize, _: usize, mask: __mmask16) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_epi32(mask, at.cast()) }
    }
}

impl Read for Bf16 {
    type Element = i16;
    const WIDTH: usize = 1;

    #[inline(always)]
    unsafe fn along(at: *const i16, count: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { Self::across(at, 0, 1, mask16(count)) }
    }

    #[inline(always)]
    unsafe fn across(at: *const i16, _: usize, _: usize, mask: __mmask16) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at))) }
    }
}

impl Read for F16 {
    type Element = i16;
    const WIDTH: usize = 1;

    #[inline(always)]
    unsafe fn along(at: *const i16, count: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { Self::across(at, 0, 1, mask16(count)) }
    }

    #[inline(always)]
    unsafe fn across(at: *const i16, _: usize, _: usize, mask: __mmask16) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_castps_si512(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at))) }
    }
}

impl Read for Pairs {
    type Element = i16;
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn along(at: *const i16, count: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_epi16(u32::MAX >> (32 - count.min(32)), at) }
    }

    #[inline(always)]
    unsafe fn across(at: *const i16, pitch: usize, rows: usize, mask: __mmask16) -> __m512i {
        // SAFETY: the caller's promise; a second element is read only where it exists.
        unsafe {
            let low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at));
            let second = if rows > 1 { mask } else { 0 };
            let high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, at.wrapping_add(pitch)));
            _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
        }
    }
}

impl Read for Quads {
    type Element = i8;
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn along(at: *const i8, count: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_epi8(u64::MAX >> (64 - count.min(64)), at) }
    }

    unsafe fn across(_: *const i8, _: usize, _: usize, _: __mmask16) -> __m512i {
        unreachable!("quantised rows lie along k")
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn walk<R: Read>(data: *const R::Element, source: &Operand, outer: Range<usize>, k: Range<usize>, panel: Panel) {
    // SAFETY: the caller's promise.
    unsafe {
        if source.along_k {
            transpose::<R>(data.add(outer.start * source.pitch + k.start), source.pitch, outer.len(), k.len(), panel);
        } else {
            copy::<R>(data.add(k.start * source.pitch + outer.start), source.pitch, outer.len(), k.len(), panel);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn copy<R: Read>(data: *const R::Element, pitch: usize, outer: usize, k: usize, panel: Panel) {
    let lanes = panel.lane.count(k);
    for i in (0..panel.width).step_by(16) {
        let (room, mask) = (mask16(panel.width - i), mask16(outer.saturating_sub(i)));
        for l in 0..lanes {
            let at = data.wrapping_add(l * R::WIDTH * pitch + i);
            // SAFETY: the masks leave out what is not there.
            unsafe {
                let values = R::across(at, pitch, k - l * R::WIDTH, mask);
                _mm512_mask_storeu_epi32(panel.pointer.add(l * panel.width + i).cast(), room, values);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn transpose<R: Read>(data: *const R::Element, pitch: usize, outer: usize, k: usize, panel: Panel) {
    let lanes = panel.lane.count(k);
    for i in (0..panel.width).step_by(16) {
        let room = mask16(panel.width - i);
        for l in (0..lanes).step_by(16) {
            let mut block = [_mm512_setzero_si512(); 16];
            for (r, row) in block.iter_mut().enumerate().take(outer.saturating_sub(i)) {
                let at = data.wrapping_add((i + r) * pitch + l * R::WIDTH);
                // SAFETY: the row exists, and so do the elements counted.
                *row = unsafe { R::along(at, k - l * R::WIDTH) };
            }
            let block = transposed(block);
            for (c, &values) in block.iter().enumerate().take(lanes - l) {
                // SAFETY: the mask leaves out what the panel has no room for.
                unsafe { _mm512_mask_storeu_epi32(panel.pointer.add((l + c) * panel.width + i).cast(), room, values) };
            }
        }
    }
}

/// # Safety
/// As [`super::pack::round_rows`], on a CPU with AVX-512F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub unsafe fn round_rows(tile: *mut f32, pitch: usize, rows: usize, columns: usize) {
    for r in 0..rows {
        let row = tile.wrapping_add(r * pitch);
        for c in (0..columns).step_by(32) {
            // SAFETY: the caller's promise; what is written lies before what is still to be read.
            unsafe {
                let [low, high] = [_mm512_loadu_ps(row.add(c)), _mm512_loadu_ps(row.add(c + 16))];
                let pairs = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                _mm512_storeu_si512(row.add(c / 2).cast(), pairs);
            }
        }
    }
}

/// # Safety
/// As [`super::pack::round_columns`], on a CPU with AVX-512F, BW and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub unsafe fn round_columns(tile: *const f32, pitch: usize, rows: usize, columns: usize, target: *mut f32) {
    const INTERLEAVED: [i16; 32] = {
        let mut places = [0; 32];
        let mut i = 0;
        while i < 32 {
            places[i] = (i / 2 + i % 2 * 16) as i16;
            i += 1;
        }
        places
    };
    // SAFETY: the array has 64 bytes.
    let interleaved = unsafe { _mm512_loadu_si512(INTERLEAVED.as_ptr().cast()) };
    for r in (0..rows).step_by(2) {
        let (row, target) = (tile.wrapping_add(r * pitch), target.wrapping_add(r / 2 * pitch));
        for c in (0..columns).step_by(16) {
            // SAFETY: the caller's promise; a second row is read only where it exists.
            unsafe {
                let low = _mm512_loadu_ps(row.add(c));
                let high = if r + 1 < rows { _mm512_loadu_ps(row.add(pitch + c)) } else { _mm512_setzero_ps() };
                let pairs = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                _mm512_storeu_si512(target.add(c).cast(), _mm512_permutexvar_epi16(interleaved, pairs));
            }
        }
    }
}

/// Sixteen rows of sixteen lanes, transposed: 32-bit, 64-bit and two 128-bit exchanges.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut quads = pairs;
    for i in 0..4 {
        for half in 0..2 {
            let (low, high) = (pairs[4 * i + half], pairs[4 * i + 2 + half]);
            quads[4 * i + 2 * half] = _mm512_unpacklo_epi64(low, high);
            quads[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(low, high);
        }
    }
    let mut columns = quads;
    for c in 0..4 {
        let low = [quads[c], quads[4 + c]];
        let high = [quads[8 + c], quads[12 + c]];
        let (a, b) = (_mm512_shuffle_i32x4::<0x88>(low[0], low[1]), _mm512_shuffle_i32x4::<0xdd>(low[0], low[1]));
        let (d, e) = (_mm512_shuffle_i32x4::<0x88>(high[0], high[1]), _mm512_shuffle_i32x4::<0xdd>(high[0], high[1]));
        columns[c] = _mm512_shuffle_i32x4::<0x88>(a, d);
        columns[4 + c] = _mm512_shuffle_i32x4::<0x88>(b, e);
        columns[8 + c] = _mm512_shuffle_i32x4::<0xdd>(a, d);
        columns[12 + c] = _mm512_shuffle_i32x4::<0xdd>(b, e);
    }
    columns
}
