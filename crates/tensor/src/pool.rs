//! Pooled memory: a training step that repeats asks the system for nothing.
//!
//! Blocks are kept by size. A request takes the smallest idle block that is not more than twice as large (any small one,
//! for a small request), so batches of different token counts share blocks; when none fits, one idle block that the new one outgrows is returned to
//! the system first, so the pool holds about what its largest step needs.

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::dtype::{DType, Element};
use crate::tensor::{Layout, Tensor, checked_bytes};

const ALIGN: usize = 64;
const HUGE_PAGE: usize = 2 << 20;
/// Below this many bytes any idle block will do.
const SMALL: usize = 16 << 10;

/// Hands out tensors and takes their memory back. Cloning gives another handle to the same pool.
#[derive(Clone, Default)]
pub struct Pool {
    inner: Arc<Mutex<Inner>>,
}

/// Counters of a [`Pool`], all in bytes but the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Blocks asked from the system since the pool was made.
    pub system_allocations: u64,
    /// Held by tensors now.
    pub live: usize,
    /// The most that tensors held at once since the last [`Pool::reset_peak`].
    pub peak: usize,
    /// Held from the system, live or idle.
    pub reserved: usize,
}

/// Which idle blocks a request takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Those that are not much larger.
    Loose,
    /// Those of its own size.
    Exact,
}

#[derive(Default)]
struct Inner {
    idle: BTreeMap<usize, Vec<Block>>,
    stats: PoolStats,
}

#[derive(Clone, Copy)]
struct Block(NonNull<u8>);

// SAFETY: a block is plain memory owned by the pool; nothing in it is tied to a thread.
unsafe impl Send for Block {}

/// One block of memory in use; returns to its pool when dropped.
pub(crate) struct Buffer {
    block: Block,
    capacity: usize,
    pool: Pool,
}

// SAFETY: the memory is reachable only through `Tensor`, whose shared access reads and whose exclusive access writes.
unsafe impl Sync for Buffer {}

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tensor whose elements are unspecified: what a former tensor left, or zero.
    pub fn empty(&self, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor::new(self.take(checked_bytes(dtype, shape), Fit::Loose), dtype, Layout::RowMajor, shape)
    }

    /// As [`Pool::empty`], but never in the block of a larger tensor: for what is kept long.
    pub fn kept(&self, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor::new(self.take(checked_bytes(dtype, shape), Fit::Exact), dtype, Layout::RowMajor, shape)
    }

    /// A tensor of zeros.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Tensor {
        let tensor = self.empty(dtype, shape);
        // SAFETY: the tensor is new, so nothing else refers to its memory, and the bytes lie inside its block; all
        // bits zero is zero in every element type.
        unsafe { std::ptr::write_bytes(tensor.address() as *mut u8, 0, tensor.bytes()) };
        tensor
    }

    /// A tensor that holds a copy of `values`.
    pub fn from_slice<T: Element>(&self, values: &[T], shape: &[usize]) -> Tensor {
        let mut tensor = self.empty(T::DTYPE, shape);
        tensor.as_mut_slice::<T>().copy_from_slice(values);
        tensor
    }

    /// Memory of `bytes` for a packed tensor of the given logical shape, which is kept long.
    pub(crate) fn packed(&self, bytes: usize, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor::new(self.take(bytes, Fit::Exact), dtype, Layout::Packed, shape)
    }

    /// The counters now.
    pub fn stats(&self) -> PoolStats {
        self.lock().stats
    }

    /// Starts a new measurement of [`PoolStats::peak`].
    pub fn reset_peak(&self) {
        let mut inner = self.lock();
        inner.stats.peak = inner.stats.live;
    }

    /// Gives the memory that no tensor holds back to the system, and with it what the C library's heap holds unused.
    pub fn release_idle(&self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: the call takes no pointer and touches only free memory of the heap.
        unsafe {
            libc::malloc_trim(0);
        }
        let mut inner = self.lock();
        for (capacity, blocks) in std::mem::take(&mut inner.idle) {
            inner.stats.reserved -= capacity * blocks.len();
            blocks.into_iter().for_each(|block| system_free(block, capacity));
        }
    }

    fn take(&self, bytes: usize, fit: Fit) -> Buffer {
        let wanted = round_up(bytes);
        let most = if fit == Fit::Exact { wanted } else { (wanted * 2).max(SMALL) };
        let mut inner = self.lock();
        let found = inner.idle.range_mut(wanted..=most).find(|(_, blocks)| !blocks.is_empty());
        let (capacity, block) = match found {
            Some((&capacity, blocks)) => (capacity, blocks.pop()),
            None => (wanted, None),
        };
        let block = block.unwrap_or_else(|| {
            inner.release_outgrown(wanted);
            inner.stats.system_allocations += 1;
            inner.stats.reserved += wanted;
            system_allocate(wanted)
        });
        inner.stats.live += capacity;
        inner.stats.peak = inner.stats.peak.max(inner.stats.live);
        Buffer { block, capacity, pool: self.clone() }
    }

    /// The counters and lists are valid after every single change, so a panic elsewhere does not spoil them.
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn release_outgrown(&mut self, wanted: usize) {
        let outgrown = self.idle.range_mut(wanted / 2..wanted).rev().find(|(_, blocks)| !blocks.is_empty());
        if let Some((&capacity, blocks)) = outgrown
            && let Some(block) = blocks.pop()
        {
            self.stats.reserved -= capacity;
            system_free(block, capacity);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (&capacity, blocks) in &mut self.idle {
            blocks.drain(..).for_each(|block| system_free(block, capacity));
        }
    }
}

impl Buffer {
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.block.0.as_ptr()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut inner = self.pool.lock();
        inner.stats.live -= self.capacity;
        inner.idle.entry(self.capacity).or_default().push(self.block);
    }
}

/// Rounds to a 32nd of the next power of two: near sizes share blocks, and matrices whose sides are multiples of 256, as
/// those of models are, waste nothing. (An eighth cost a RoBERTa-base run 120 MB: huge pages make the waste resident.)
fn round_up(bytes: usize) -> usize {
    let step = (bytes.max(2048).next_power_of_two() / 32).max(ALIGN);
    bytes.max(1).div_ceil(step) * step
}

fn system_allocate(capacity: usize) -> Block {
    let pointer = if capacity >= HUGE_PAGE { pages::map(capacity) } else { heap_allocate(capacity) };
    Block(pointer.unwrap_or_else(|| handle_alloc_error(heap_layout(capacity))))
}

fn system_free(block: Block, capacity: usize) {
    if capacity >= HUGE_PAGE { pages::unmap(block.0, capacity) } else { heap_free(block.0, capacity) }
}

fn heap_layout(capacity: usize) -> AllocLayout {
    AllocLayout::from_size_align(capacity, ALIGN).expect("a tensor larger than the address space")
}

fn heap_allocate(capacity: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout has a size of at least one alignment unit.
    NonNull::new(unsafe { alloc_zeroed(heap_layout(capacity)) })
}

fn heap_free(pointer: NonNull<u8>, capacity: usize) {
    // SAFETY: the pointer came from `heap_allocate` with the same capacity and is in no list any more.
    unsafe { dealloc(pointer.as_ptr(), heap_layout(capacity)) };
}

/// Large blocks come as pages, which the system zeroes only when they are touched, on huge-page borders: weights and
/// activations are walked in long strides, and with 4 KiB pages the TLB misses cost more than the arithmetic.
#[cfg(target_os = "linux")]
mod pages {
    use super::{HUGE_PAGE, NonNull};

    pub fn map(capacity: usize) -> Option<NonNull<u8>> {
        let length = capacity.checked_add(HUGE_PAGE)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the system's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let head = base.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: `head + capacity <= length`, so the three ranges lie inside the new mapping; what is unmapped is not
        // part of the block. Advice that is refused changes nothing.
        unsafe {
            let start = base.byte_add(head);
            let end = start.byte_add(page_up(capacity));
            let tail = length - head - page_up(capacity);
            if head > 0 {
                libc::munmap(base, head);
            }
            if tail > 0 {
                libc::munmap(end, tail);
            }
            libc::madvise(start, capacity, libc::MADV_HUGEPAGE);
            NonNull::new(start.cast())
        }
    }

    pub fn unmap(pointer: NonNull<u8>, capacity: usize) {
        // SAFETY: the block came from `map` with the same capacity and is in no list any more.
        unsafe { libc::munmap(pointer.as_ptr().cast(), page_up(capacity)) };
    }

    fn page_up(bytes: usize) -> usize {
        bytes.next_multiple_of(4096)
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    pub use super::{heap_allocate as map, heap_free as unmap};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_step_asks_the_system_for_nothing() {
        let pool = Pool::new();
        let step = |tokens: usize| {
            let a = pool.empty(DType::F32, &[tokens, 768]);
            let b = pool.empty(DType::F32, &[tokens, 3072]);
            drop(a);
            let _c = pool.empty(DType::F32, &[tokens, 768]);
            drop(b);
        };
        step(900);
        let warm = pool.stats().system_allocations;
        [900, 512, 711, 899].into_iter().for_each(step);
        assert_eq!(pool.stats().system_allocations, warm);
        assert_eq!(pool.stats().live, 0);
    }

    #[test]
    fn a_growing_batch_replaces_its_blocks_instead_of_adding() {
        let pool = Pool::new();
        for tokens in [100, 120, 140, 160, 190] {
            pool.empty(DType::F32, &[tokens, 1024]);
        }
        assert!(pool.stats().reserved <= round_up(190 * 4096) + round_up(100 * 4096));
    }

    #[test]
    fn clones_share_memory_and_the_last_one_returns_it() {
        let pool = Pool::new();
        let mut a = pool.zeros(DType::F32, &[3]);
        let b = a.clone();
        assert!(!a.is_unique());
        drop(b);
        assert!(a.is_unique());
        drop(a);
        assert_eq!(pool.stats().live, 0);
    }

    #[test]
    fn what_is_kept_takes_no_larger_block() {
        let pool = Pool::new();
        drop(pool.empty(DType::F32, &[3000, 768]));
        let kept = pool.kept(DType::BF16, &[3000, 768]);
        assert_eq!(pool.stats().live, round_up(kept.bytes()));
    }

    #[test]
    fn idle_memory_goes_back_to_the_system_when_asked() {
        let pool = Pool::new();
        let kept = pool.zeros(DType::F32, &[100]);
        drop((pool.empty(DType::F32, &[5]), pool.empty(DType::F32, &[3000, 768])));
        pool.release_idle();
        assert_eq!(pool.stats().reserved, pool.stats().live);
        assert_eq!(kept.as_slice::<f32>(), [0.0; 100]);
    }

    #[test]
    #[should_panic(expected = "larger than the address space")]
    fn a_shape_whose_size_wraps_is_refused() {
        Pool::new().empty(DType::F32, &[1 << 62]);
    }

    #[test]
    fn an_empty_tensor_is_a_valid_slice() {
        assert!(Pool::new().empty(DType::F32, &[0, 768]).as_slice::<f32>().is_empty());
    }
}
