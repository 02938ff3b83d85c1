//! The blocked product over the thread team.
//!
//! Where B is quantised, the threads quantise and pack all of A in step 1 instead.
//!
//! ```text
//!            n: column blocks of panels of NR
//!          ┌─────┬─────┬─────┐        1. the threads pack B into panels, unless it is packed (or quantise A)
//!        k │  B  │     │     │        2. every task, taken when a thread is free: for each block of k,
//!          └─────┴─────┴─────┘           pack the task's rows of A, multiply panel by panel into C,
//!      k   ┌─────┬─────┬─────┐           and after the last block finish each tile while it is in cache
//!     ┌───┐├─────┼─────┼─────┤
//!   m │ A ││  C  │task │     │        blocks of k depend on k alone, so an element's sum has one order.
//!     └───┘└─────┴─────┴─────┘
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Path;
use super::epilogue::Output;
use super::int8;
use super::kernel::{self, Lane, MR, NR, Tile, Walk};
use super::operand::{Data, Operand};
use super::pack::{self, Panel};
use crate::cpu::CpuKernels;
use crate::dtype::DType;
use crate::team::Worker;

/// Most lanes summed in registers before they meet memory: a panel of A (42 KiB) and one of B (96 KiB) stay in L2.
const KC: usize = 768;

/// Lanes of a block: `lanes` in equal parts.
fn block_lanes(lanes: usize) -> usize {
    lanes.div_ceil(lanes.div_ceil(KC).max(1))
}
/// Below this many multiply-adds a second thread costs more than it saves.
const SERIAL: usize = 1 << 17;
/// Panels of rows of a task, at most.
const MOST_ROW_PANELS: usize = 8;
/// Panels of rows that are few enough for every thread to pack all of them.
const FEW_ROW_PANELS: usize = 10;
/// Tasks per thread that even out what a busy machine takes from one of them.
const TASKS_PER_THREAD: usize = 8;

/// The right-hand side `[k, n]`.
pub enum Right<'a> {
    /// To be packed.
    Plain(Operand<'a>),
    /// Packed by [`pack_right`] in lanes of the given kind, or quantised by [`int8::quantize`].
    Packed(*const f32, Lane),
}

// SAFETY: packed panels are only read while a product runs, and outlive it.
unsafe impl Sync for Right<'_> {}

/// The sizes of a product.
#[derive(Clone, Copy)]
pub struct Size {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Lanes of a packed right-hand side.
pub fn packed_lanes(n: usize, k: usize, lane: Lane) -> usize {
    n.next_multiple_of(NR) * lane.count(k)
}

/// Packs a whole right-hand side.
///
/// # Safety
/// `target` is writable at [`packed_lanes`] lanes and nothing else touches it.
pub unsafe fn pack_right(kernels: &CpuKernels, source: &Operand, n: usize, k: usize, lane: Lane, target: *mut f32) {
    let target = Shared(target);
    kernels.team.for_each(n.div_ceil(NR), |panel| {
        let pointer = target.panel(panel, lane.count(k));
        // SAFETY: every panel is its own part of the target.
        unsafe { pack::pack(kernels.path, source, columns(panel, n), 0..k, Panel { pointer, width: NR, lane }) };
    });
}

/// `output = a · b`.
pub fn product(kernels: &CpuKernels, size: Size, a: &Operand, b: &Right, output: &Output) {
    if size.m == 0 || size.n == 0 {
        return;
    }
    let job = Job::new(kernels, size, a, b, output);
    let alone = size.m * size.n * size.k <= SERIAL;
    let run = |phase: &(dyn Fn(Worker) + Sync)| match alone {
        true => kernels.team.run_alone(phase),
        false => kernels.team.run_open(phase),
    };
    if job.has_preparation() {
        run(&|worker| job.prepare(worker));
    }
    run(&|worker| job.compute(worker));
}

/// Memory that threads write, each its own panels.
pub struct Shared(pub *mut f32);

// SAFETY: every thread writes panels that no other thread touches in the same phase.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    pub fn at(&self, lane: usize) -> *mut f32 {
        self.0.wrapping_add(lane)
    }

    pub fn panel(&self, panel: usize, lanes: usize) -> *mut f32 {
        self.0.wrapping_add(panel * lanes * NR)
    }
}

pub fn columns(panel: usize, n: usize) -> Range<usize> {
    panel * NR..((panel + 1) * NR).min(n)
}

/// Panels of a task's rows and their height, equal for all: 16 rows are 8 + 8, not 14 + 2.
fn heights(rows: &Range<usize>) -> (usize, usize) {
    let count = rows.len().div_ceil(MR);
    (count, rows.len().div_ceil(count.max(1)))
}

/// The rows of one of those panels; none beyond the last.
fn panel_rows(rows: &Range<usize>, panel: usize) -> Range<usize> {
    let (_, height) = heights(rows);
    (rows.start + panel * height).min(rows.end)..(rows.start + (panel + 1) * height).min(rows.end)
}

/// One product, prepared.
struct Job<'a> {
    kernels: &'a CpuKernels,
    size: Size,
    lane: Lane,
    a: &'a Operand<'a>,
    b: &'a Right<'a>,
    output: &'a Output<'a>,
    grid: Grid,
    /// Whether a thread packs A once for all of its tasks, because all of them are of the same few rows.
    keeps_rows: bool,
    /// Panels of B: packed by this call or before.
    panels: Shared,
    /// A, where B is quantised.
    quantized: Option<int8::Rows>,
    /// Panels of A (a panel's quantised rows on their way there) and sums, for every thread.
    own: Shared,
    own_lanes: usize,
    /// Lanes of them before the sums.
    own_panels: usize,
    next_panel: AtomicUsize,
    next_task: AtomicUsize,
    _workspace: crate::tensor::Tensor,
}

impl<'a> Job<'a> {
    fn new(kernels: &'a CpuKernels, size: Size, a: &'a Operand, b: &'a Right, output: &'a Output) -> Self {
        let lane = lane_of(kernels.path, a, b);
        // Where B is packed before. Elsewhere it must be packed now, which costs more than packing A does; and a step of
        // training asks for no more memory than its largest batch did.
        let is_packed = matches!(b, Right::Packed(_, packed) if *packed == lane);
        let is_few = is_packed && size.m.div_ceil(MR) <= FEW_ROW_PANELS;
        let grid = Grid::new(size, kernels.team.threads(), is_few);
        let keeps_rows = is_few && lane != Lane::Quad;
        let lanes = lane.count(size.k);
        let packed = match b {
            Right::Packed(_, packed) if *packed == lane => 0,
            _ => packed_lanes(size.n, size.k, lane),
        };
        let (rows, block) = (grid.row_panels * MR, block_lanes(lanes));
        let sums = if output.in_place().is_some() { 0 } else { rows * grid.sum_columns(lanes) };
        let own_panels = match lane {
            Lane::Quad => MR * lanes,
            _ if keeps_rows => rows * lanes,
            _ => rows * block,
        };
        let own_lanes = (own_panels + sums).next_multiple_of(NR);
        let rows = match lane {
            Lane::Quad => int8::Rows::lanes(size, grid.row_blocks * grid.row_panels),
            _ => [0; 2],
        };
        let shared = packed + rows[0] + rows[1];
        let workspace = kernels.pool.empty(DType::F32, &[shared + own_lanes * kernels.team.threads()]);
        let base = workspace.address() as *mut f32;
        let panels = match b {
            Right::Packed(panels, packed) if *packed == lane => panels.cast_mut(),
            _ => base,
        };
        let quantized = (lane == Lane::Quad).then(|| int8::Rows {
            panels: Shared(base.wrapping_add(packed)),
            scales: Shared(base.wrapping_add(packed + rows[0])),
        });
        let own = Shared(base.wrapping_add(shared));
        let (next_panel, next_task) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let panels = Shared(panels);
        let _workspace = workspace;
        Self {
            kernels,
            size,
            lane,
            a,
            b,
            output,
            grid,
            keeps_rows,
            panels,
            quantized,
            own,
            own_lanes,
            own_panels,
            next_panel,
            next_task,
            _workspace,
        }
    }

    fn own(&self, worker: Worker) -> *mut f32 {
        self.own.0.wrapping_add(worker.index * self.own_lanes)
    }

    fn has_preparation(&self) -> bool {
        self.quantized.is_some() || !matches!(self.b, Right::Packed(_, packed) if *packed == self.lane)
    }

    /// Quantises A, or packs B, together with the other threads.
    fn prepare(&self, worker: Worker) {
        match &self.quantized {
            Some(quantized) => self.quantize(quantized, self.own(worker)),
            None => self.pack(),
        }
    }

    /// Takes tasks until none is left.
    fn compute(&self, worker: Worker) {
        let own = self.own(worker);
        let mut is_packed = false;
        while let Some((rows, panels)) = self.grid.task(self.next_task.fetch_add(1, Ordering::Relaxed)) {
            if self.keeps_rows && !std::mem::replace(&mut is_packed, true) {
                (0..=self.last_block()).for_each(|block| self.pack_rows(&rows, block, own));
            }
            self.task(rows, panels, own);
        }
    }

    /// Lanes of a block of k.
    fn lanes(&self, block: usize) -> Range<usize> {
        let lanes = self.lane.count(self.size.k);
        let each = block_lanes(lanes);
        block * each..((block + 1) * each).min(lanes)
    }

    fn last_block(&self) -> usize {
        let lanes = self.lane.count(self.size.k);
        lanes.saturating_sub(1).checked_div(block_lanes(lanes)).unwrap_or(0)
    }

    /// Where a panel of A lies, with the lanes of a block.
    fn a_panel(&self, rows: &Range<usize>, panel: usize, block: usize, own: *mut f32) -> *mut f32 {
        let (lanes, l) = (self.lane.count(self.size.k), self.lanes(block));
        match &self.quantized {
            Some(a) => a.panels.0.wrapping_add(((rows.start / MR + panel) * lanes + l.start) * MR),
            None => {
                let before = if self.keeps_rows { self.grid.row_panels * l.start } else { 0 };
                own.wrapping_add((before + panel * l.len()) * MR)
            }
        }
    }

    /// Packs a block of the rows of A into this thread's workspace `own`.
    fn pack_rows(&self, rows: &Range<usize>, block: usize, own: *mut f32) {
        let (lane, l) = (self.lane, self.lanes(block));
        let k = l.start * lane.width()..(l.end * lane.width()).min(self.size.k);
        for p in 0..heights(rows).0 {
            let panel = Panel { pointer: self.a_panel(rows, p, block, own), width: MR, lane };
            // SAFETY: the workspace is this thread's and has room for all panels.
            unsafe { pack::pack(self.kernels.path, self.a, panel_rows(rows, p), k.clone(), panel) };
        }
    }

    /// Quantises panels of A until none is left. `own` is this thread's workspace.
    fn quantize(&self, quantized: &int8::Rows, own: *mut f32) {
        let lanes = self.lane.count(self.size.k);
        let row_panels = self.grid.row_panels;
        loop {
            let panel = self.next_panel.fetch_add(1, Ordering::Relaxed);
            if panel >= self.grid.row_blocks * row_panels {
                return;
            }
            let rows = panel_rows(&self.grid.rows(panel / row_panels), panel % row_panels);
            let target =
                Panel { pointer: quantized.panels.0.wrapping_add(panel * MR * lanes), width: MR, lane: self.lane };
            let scales = quantized.scales.0.wrapping_add(rows.start);
            // SAFETY: the panel number is this thread's alone, its rows and the panel are of no other; the workspace has
            // room for a panel's quantised rows.
            unsafe {
                let bytes = std::slice::from_raw_parts_mut(own.cast::<u8>(), rows.len() * lanes * self.lane.width());
                let scales = std::slice::from_raw_parts_mut(scales, rows.len());
                int8::quantize_panel(self.kernels, self.a, rows, bytes, scales, target);
            }
        }
    }

    /// Packs panels of B until none is left.
    fn pack(&self) {
        let (Size { n, k, .. }, lane) = (self.size, self.lane);
        loop {
            let panel = self.next_panel.fetch_add(1, Ordering::Relaxed);
            if panel >= n.div_ceil(NR) {
                return;
            }
            let pointer = self.panels.panel(panel, lane.count(k));
            // SAFETY: the panel number is this thread's alone, and the workspace has room for all panels.
            unsafe {
                match self.b {
                    Right::Plain(b) => {
                        pack::pack(self.kernels.path, b, columns(panel, n), 0..k, Panel { pointer, width: NR, lane });
                    }
                    Right::Packed(pairs, _) => {
                        let pairs = pairs.wrapping_add(panel * Lane::Pair.count(k) * NR);
                        pack::widen_pairs(self.kernels, pairs, k, pointer);
                    }
                }
            }
        }
    }

    /// One block of C: rows `rows`, column panels `panels`. `own` is this thread's workspace.
    fn task(&self, rows: Range<usize>, panels: Range<usize>, own: *mut f32) {
        let (Size { n, k, .. }, lane, output) = (self.size, self.lane, self.output);
        let lanes = lane.count(k);
        let (count, height) = heights(&rows);
        let sums = own.wrapping_add(self.own_panels);
        let last_block = self.last_block();
        for block in 0..=last_block {
            let l = self.lanes(block);
            if self.quantized.is_none() && !self.keeps_rows {
                self.pack_rows(&rows, block, own);
            }
            for panel in panels.clone() {
                let columns = columns(panel, n);
                let b = self.panels.panel(panel, lanes).wrapping_add(l.start * NR);
                for p in 0..count {
                    let rows_of = panel_rows(&rows, p);
                    let (c, c_pitch) = match output.in_place() {
                        Some(y) => (y.wrapping_add(rows_of.start * n + columns.start), n),
                        None if last_block == 0 => (sums, NR),
                        None => {
                            let pitch = panels.len() * NR;
                            (sums.wrapping_add(p * height * pitch + (panel - panels.start) * NR), pitch)
                        }
                    };
                    let tile = Tile {
                        rows: rows_of.len(),
                        columns: columns.len(),
                        lanes: l.len(),
                        a: self.a_panel(&rows, p, block, own),
                        walk: Walk::Columns(MR),
                        b,
                        b_pitch: NR,
                        c,
                        c_pitch,
                        add: block > 0 || (output.accumulate && output.is_plain()),
                    };
                    // SAFETY: panels hold `MR` and `NR` lanes a row; the tile of C is this task's alone.
                    unsafe {
                        kernel::compute(self.kernels, lane, &tile);
                        if block == last_block && !output.is_plain() {
                            let scales = self.quantized.as_ref().map(|a| {
                                let first = a.scales.0.wrapping_add(rows_of.start);
                                std::slice::from_raw_parts(first.cast_const(), rows_of.len())
                            });
                            output.finish(self.kernels, rows_of, columns.clone(), c, c_pitch, scales);
                        }
                    }
                }
            }
        }
    }
}

/// Quads where B is quantised; pairs where both sides are `bf16` and the CPU multiplies pairs; else everything is widened.
fn lane_of(path: Path, a: &Operand, b: &Right) -> Lane {
    if let Right::Packed(_, Lane::Quad) = b {
        return Lane::Quad;
    }
    let pairs = match (a.data, b) {
        (Data::Bf16(_), Right::Plain(b)) => matches!(b.data, Data::Bf16(_)),
        (Data::Bf16(_), Right::Packed(_, lane)) => *lane == Lane::Pair,
        _ => false,
    };
    if pairs { path.bf16_lane() } else { Lane::Single }
}

/// The part `index` of `0..all`, in parts of `each`.
fn cut(index: usize, each: usize, all: usize) -> Range<usize> {
    (index * each).min(all)..((index + 1) * each).min(all)
}

/// How C is cut into tasks.
struct Grid {
    size: Size,
    /// Row panels of a task.
    row_panels: usize,
    /// Column panels of a task.
    column_panels: usize,
    row_blocks: usize,
    column_blocks: usize,
}

impl Grid {
    /// Rows are cut first, so that a task packs its part of A for all columns; of few rows only the columns are cut, and
    /// every thread packs all of A.
    fn new(size: Size, threads: usize, is_few: bool) -> Self {
        let (m, n) = (size.m.div_ceil(MR), size.n.div_ceil(NR));
        let tasks = |rows: usize, columns: usize| m.div_ceil(rows) * n.div_ceil(columns);
        let (mut rows, mut columns) = (if is_few { m } else { m.min(MOST_ROW_PANELS) }, n);
        let wanted = if threads == 1 { 1 } else { TASKS_PER_THREAD * threads };
        let least: &[_] = if is_few { &[(m, 1)] } else { &[(4, n), (4, 12), (2, 12), (2, 4), (1, 1)] };
        for &(least_rows, least_columns) in least {
            while tasks(rows, columns) < wanted && (rows > least_rows || columns > least_columns) {
                if rows > least_rows { rows = rows.div_ceil(2) } else { columns = columns.div_ceil(2) }
            }
        }
        let (row_blocks, column_blocks) = (m.div_ceil(rows), n.div_ceil(columns));
        let (row_panels, column_panels) = (m.div_ceil(row_blocks), n.div_ceil(column_blocks));
        Self { size, row_panels, column_panels, row_blocks, column_blocks }
    }

    /// Columns of a task's sums where they do not go to the output: one tile, or all where `k` has several blocks.
    fn sum_columns(&self, lanes: usize) -> usize {
        if lanes <= KC { NR } else { self.column_panels * NR }
    }

    /// Rows and column panels of a task, the rows changing fastest so that neighbours share panels of B.
    fn task(&self, index: usize) -> Option<(Range<usize>, Range<usize>)> {
        let (row, column) = (index % self.row_blocks, index / self.row_blocks);
        if column >= self.column_blocks {
            return None;
        }
        Some((self.rows(row), cut(column, self.column_panels, self.size.n.div_ceil(NR))))
    }

    fn rows(&self, block: usize) -> Range<usize> {
        cut(block, self.row_panels * MR, self.size.m)
    }
}
