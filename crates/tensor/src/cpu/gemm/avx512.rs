//! The micro-kernels for AVX-512: `f32` multiply-adds, dot products of `bf16` pairs with `f32` sums, and of 8-bit quads with
//! integer sums.
//!
//! 14 x 32 sums fill 28 of the 32 registers; a lane costs 28 instructions, two loads and 14 broadcasts.

use std::arch::x86_64::*;
use std::sync::OnceLock;
use std::time::Instant;

use super::kernel::{Lane, MR, NR, ROW_PITCH, Tile, Walk};

/// Lanes of `b` that are asked for ahead of their use: where rows are few, memory is the limit.
const AHEAD: usize = 24;

/// Lanes from which on sums so far are asked for ahead of their use: shorter tiles have them in cache.
const LONG: usize = 256;

/// # Safety
/// As [`super::kernel::compute`], on a CPU with AVX-512F, AVX-512-BF16 for pairs, and AVX-512-VNNI for quads.
pub unsafe fn compute(lane: Lane, tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        match (lane, tile.walk) {
            (Lane::Single, Walk::Columns(stride)) => single::<1>(tile, stride),
            (Lane::Single, Walk::Rows) => single::<ROW_PITCH>(tile, 1),
            (Lane::Pair, Walk::Columns(stride)) => pair::<1>(tile, stride),
            (Lane::Pair, Walk::Rows) => pair::<ROW_PITCH>(tile, 1),
            (Lane::Quad, Walk::Columns(stride)) => quad::<1>(tile, stride),
            (Lane::Quad, Walk::Rows) => quad::<ROW_PITCH>(tile, 1),
        }
    }
}

macro_rules! micro_kernel {
    ($name:ident, $rows:ident, $features:literal, $multiply_add:expr, $add:expr) => {
        unsafe fn $name<const ROW_STRIDE: usize>(tile: &Tile, lane_stride: usize) {
            // SAFETY: the caller's promise; `rows` is the tile's.
            unsafe {
                match tile.rows {
                    0 => (),
                    1 => $rows::<1, ROW_STRIDE>(tile, lane_stride),
                    2 => $rows::<2, ROW_STRIDE>(tile, lane_stride),
                    3 => $rows::<3, ROW_STRIDE>(tile, lane_stride),
                    4 => $rows::<4, ROW_STRIDE>(tile, lane_stride),
                    5 => $rows::<5, ROW_STRIDE>(tile, lane_stride),
                    6 => $rows::<6, ROW_STRIDE>(tile, lane_stride),
                    7 => $rows::<7, ROW_STRIDE>(tile, lane_stride),
                    8 => $rows::<8, ROW_STRIDE>(tile, lane_stride),
                    9 => $rows::<9, ROW_STRIDE>(tile, lane_stride),
                    10 => $rows::<10, ROW_STRIDE>(tile, lane_stride),
                    11 => $rows::<11, ROW_STRIDE>(tile, lane_stride),
                    12 => $rows::<12, ROW_STRIDE>(tile, lane_stride),
                    13 => $rows::<13, ROW_STRIDE>(tile, lane_stride),
                    _ => $rows::<MR, ROW_STRIDE>(tile, lane_stride),
                }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn $rows<const ROWS: usize, const ROW_STRIDE: usize>(tile: &Tile, lane_stride: usize) {
            let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
            let (mut a, mut b) = (tile.a, tile.b);
            if tile.add && tile.lanes >= LONG {
                for r in 0..ROWS {
                    let c = tile.c.wrapping_add(r * tile.c_pitch);
                    _mm_prefetch::<_MM_HINT_T1>(c.cast());
                    _mm_prefetch::<_MM_HINT_T1>(c.wrapping_add(NR - 1).cast());
                }
            }
            for _ in 0..tile.lanes {
                // SAFETY: `a` is readable at `ROWS x lanes`, `b` at `lanes` rows of 32.
                let columns = unsafe { [_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16))] };
                for (r, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let value = _mm512_set1_ps(unsafe { *a.add(r * ROW_STRIDE) });
                    sums[0] = $multiply_add(value, columns[0], sums[0]);
                    sums[1] = $multiply_add(value, columns[1], sums[1]);
                }
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * NR).cast());
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * NR + NR / 2).cast());
                a = a.wrapping_add(lane_stride);
                b = b.wrapping_add(tile.b_pitch);
            }
            let mask = (u32::MAX >> (NR - tile.columns)) as u64;
            for (r, sums) in sums.iter().enumerate() {
                let c = tile.c.wrapping_add(r * tile.c_pitch);
                for (half, &sum) in sums.iter().enumerate() {
                    let (c, mask) = (c.wrapping_add(16 * half), (mask >> (16 * half)) as __mmask16);
                    // SAFETY: the mask leaves out what is not a column of the tile.
                    unsafe {
                        let sum = if tile.add { $add(_mm512_maskz_loadu_ps(mask, c), sum) } else { sum };
                        _mm512_mask_storeu_ps(c, mask, sum);
                    }
                }
            }
        }
    };
}

micro_kernel!(single, single_rows, "avx512f", |a, b, sum| _mm512_fmadd_ps(a, b, sum), |a, b| _mm512_add_ps(a, b));
micro_kernel!(
    pair,
    pair_rows,
    "avx512f,avx512bf16",
    |a, b, sum| _mm512_dpbf16_ps(sum, bf16_lanes(a), bf16_lanes(b)),
    |a, b| _mm512_add_ps(a, b)
);
// Integers in the lanes of `f32` vectors: only their type says otherwise.
micro_kernel!(
    quad,
    quad_rows,
    "avx512f,avx512vnni",
    |a, b, sum| {
        let (a, b, sum) = (_mm512_castps_si512(a), _mm512_castps_si512(b), _mm512_castps_si512(sum));
        _mm512_castsi512_ps(_mm512_dpbusd_epi32(sum, a, b))
    },
    |a, b| _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)))
);

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_lanes(lanes: __m512) -> __m512bh {
    // SAFETY: both are 512 bits without invalid patterns.
    unsafe { std::mem::transmute::<__m512, __m512bh>(lanes) }
}

/// Whether this CPU multiplies `bf16` pairs at clearly more than the rate of `f32`, by the time of tiles in the first
/// level cache. Chips differ: from half the rate of `f32` to twice it. Measured once, for about a millisecond.
pub fn pairs_are_faster() -> bool {
    static FASTER: OnceLock<bool> = OnceLock::new();
    *FASTER.get_or_init(|| {
        if !is_x86_feature_detected!("avx512bf16") {
            return false;
        }
        const LANES: usize = 128;
        let (a, b) = ([0.0f32; LANES * MR], [0.0f32; (LANES + AHEAD) * NR]);
        let mut c = [0.0f32; MR * NR];
        let mut time = |lane: Lane| {
            let tile = Tile {
                rows: MR,
                columns: NR,
                lanes: LANES,
                a: a.as_ptr(),
                walk: Walk::Columns(MR),
                b: b.as_ptr(),
                b_pitch: NR,
                c: c.as_mut_ptr(),
                c_pitch: NR,
                add: false,
            };
            let start = Instant::now();
            // SAFETY: the CPU has the instructions, and the arrays have the sizes of the tile.
            unsafe { compute(lane, &tile) };
            start.elapsed()
        };
        // In turns and for long enough that a chip which powers its wide lanes up slowly has done so.
        let mut least = [f64::INFINITY; 2];
        for _ in 0..512 {
            for (least, lane) in least.iter_mut().zip([Lane::Pair, Lane::Single]) {
                *least = time(lane).as_secs_f64().min(*least);
            }
        }
        // Equal rates are a factor of 2, because a pair is two multiply-adds.
        least[0] < 1.7 * least[1]
    })
}
