//! The micro-kernel over `pulp`'s vectors, for every CPU without AVX-512: AVX2, NEON, or plain numbers.

use pulp::{Simd, WithSimd};

use crate::cpu::CpuKernels;

use super::kernel::{NR, ROW_PITCH, Tile, Walk};

/// Rows whose sums, two vectors each, fit the 16 registers of AVX2.
const ROWS: usize = 6;

/// # Safety
/// As [`super::kernel::compute`]; lanes are single.
pub unsafe fn compute(kernels: &CpuKernels, tile: &Tile) {
    kernels.arch.dispatch(Compute(tile));
}

/// As [`compute`], for quads and their integer sums.
///
/// # Safety
/// As [`super::kernel::compute`]; lanes are quads in columns.
pub unsafe fn compute_quads(kernels: &CpuKernels, tile: &Tile) {
    let Walk::Columns(stride) = tile.walk else { unreachable!("quads walk over columns") };
    vectorized!(kernels, {
        for row in 0..tile.rows {
            let mut sums = [0i32; NR];
            for lane in 0..tile.lanes {
                // SAFETY: `b` is readable at `lanes` rows of `NR`, `a` at `rows x lanes`.
                let (a, b) = unsafe {
                    let b = tile.b.add(lane * tile.b_pitch).cast::<[i32; NR]>().read_unaligned();
                    (tile.a.add(row + lane * stride).cast::<[u8; 4]>().read(), b)
                };
                let a = a.map(i32::from);
                for (sum, b) in sums.iter_mut().zip(b) {
                    let b = [b << 24 >> 24, b << 16 >> 24, b << 8 >> 24, b >> 24];
                    let quad = (a[0] * b[0] + a[1] * b[1]) + (a[2] * b[2] + a[3] * b[3]);
                    *sum = sum.wrapping_add(quad);
                }
            }
            // SAFETY: `c` is writable at `rows x columns` and no one else touches it.
            let c =
                unsafe { std::slice::from_raw_parts_mut(tile.c.add(row * tile.c_pitch).cast::<i32>(), tile.columns) };
            c.iter_mut().zip(sums).for_each(|(c, sum)| *c = if tile.add { c.wrapping_add(sum) } else { sum });
        }
    });
}

/// The instruction set of [`compute`].
pub fn name(kernels: &CpuKernels) -> &'static str {
    struct Lanes;
    impl WithSimd for Lanes {
        type Output = usize;
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    match (kernels.arch.dispatch(Lanes), cfg!(target_arch = "aarch64")) {
        (4, true) => "neon",
        (8, _) => "avx2",
        (16, _) => "avx512-portable",
        _ => "scalar",
    }
}

/// A tile that [`compute`]'s caller vouches for.
struct Compute<'a>(&'a Tile);

impl WithSimd for Compute<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let tile = self.0;
        // Blocks of equal height: 14 rows are 5 + 5 + 4, because two rows alone leave the multipliers waiting.
        let height = tile.rows.div_ceil(tile.rows.div_ceil(ROWS).max(1)).max(1);
        for column in (0..tile.columns).step_by(2 * S::F32_LANES) {
            for row in (0..tile.rows).step_by(height) {
                // SAFETY: the block lies inside the tile; its columns inside the `NR` of `b`.
                unsafe {
                    match (tile.rows - row).min(height) {
                        1 => block::<S, 1>(simd, tile, row, column),
                        2 => block::<S, 2>(simd, tile, row, column),
                        3 => block::<S, 3>(simd, tile, row, column),
                        4 => block::<S, 4>(simd, tile, row, column),
                        5 => block::<S, 5>(simd, tile, row, column),
                        _ => block::<S, ROWS>(simd, tile, row, column),
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn block<S: Simd, const R: usize>(simd: S, tile: &Tile, row: usize, column: usize) {
    let (row_stride, lane_stride) = match tile.walk {
        Walk::Columns(stride) => (1, stride),
        Walk::Rows => (ROW_PITCH, 1),
    };
    let mut sums = [[simd.splat_f32s(0.0); 2]; R];
    for lane in 0..tile.lanes {
        // SAFETY: `b` is readable at `lanes` rows of `NR`, `a` at `rows x lanes`.
        let (b, a) = unsafe {
            let b = tile.b.add(lane * tile.b_pitch + column);
            let vectors =
                [b.cast::<S::f32s>().read_unaligned(), b.add(S::F32_LANES).cast::<S::f32s>().read_unaligned()];
            (vectors, tile.a.add(row * row_stride + lane * lane_stride))
        };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let value = simd.splat_f32s(unsafe { *a.add(r * row_stride) });
            sums[0] = simd.mul_add_e_f32s(value, b[0], sums[0]);
            sums[1] = simd.mul_add_e_f32s(value, b[1], sums[1]);
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let mut values = [0.0f32; NR];
        // SAFETY: two vectors are no wider than `NR`; `c` is writable at `rows x columns` and no one else touches it.
        let c = unsafe {
            values.as_mut_ptr().cast::<[S::f32s; 2]>().write_unaligned(*sums);
            let c = tile.c.add((row + r) * tile.c_pitch + column);
            std::slice::from_raw_parts_mut(c, (tile.columns - column).min(2 * S::F32_LANES))
        };
        c.iter_mut().zip(&values).for_each(|(c, &sum)| *c = if tile.add { *c + sum } else { sum });
    }
}
