//! A warm training step asks the system for no memory of a tensor's size, whatever its batch looks like.
//!
//! This test is a binary of its own: it counts what the whole process allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use model::tokenizer::Tokenizer;
use model::{Batch, Encoder, Gradients, Loss, Model, ModelConfig, Policy, Sequence, Targets, Weights};
use tensor::{CpuKernels, DType, Kernels, Stream};
use trace::recorder::Lane;
use train::{Adamw, AdamwConfig, Prepared, Updater};

/// Smaller than the smallest activation of the batches below, larger than any list of operators.
const LARGE: usize = 16 << 10;

struct Counting;

static LARGE_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    if bytes >= LARGE {
        LARGE_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TOKENS: usize = 600;
const LONGEST: usize = 64;
const CONFIG: &str = r#"{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 90,
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 256,
    "max_position_embeddings": 64, "num_labels": 3}"#;

fn tokenizer() -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n").unwrap();
    Tokenizer::open(dir.path()).unwrap()
}

/// Texts of random lengths, as many as the budget of tokens takes: what a job with a token budget trains on.
fn batch(encoder: &Encoder, seed: u64) -> Prepared {
    let random = Stream::new(seed, 0, 0);
    let mut texts: Vec<Vec<u32>> = Vec::new();
    let mut tokens = 0;
    for place in 0.. {
        let length = 1 + random.word(place, 0) as usize % LONGEST;
        if tokens + length > TOKENS {
            break;
        }
        texts.push((0..length as u32).map(|i| random.word(place, i + 1) % 90).collect());
        tokens += length;
    }
    let sequence = |(ids, identity): (_, u64)| -> Sequence {
        let ids: &Vec<u32> = ids;
        Sequence { ids, first_segment: ids.len(), identity }
    };
    let packed = Batch::pack(&encoder.config().encoder, texts.iter().zip(0..).map(sequence));
    let targets = Targets::Classes((0..texts.len() as i32).map(|i| i % 3).collect());
    Prepared { batch: packed, targets }
}

#[test]
fn a_warm_step_asks_the_system_for_no_tensor() {
    for (dtype, policy) in [(DType::F32, Policy::Keep), (DType::F32, Policy::Recompute), (DType::BF16, Policy::Keep)] {
        let kernels = CpuKernels::new(2);
        let mut encoder = Encoder::new(ModelConfig::parse(CONFIG).unwrap());
        encoder.policy = policy;
        let mut weights = Weights::initialised(encoder.descriptors(), &kernels, 1);
        if dtype == DType::BF16 {
            weights.keep_working_copies(&kernels, dtype);
        }
        let gradients = Gradients::new(&weights, &kernels, |_| true);
        let config = AdamwConfig { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01, clip_norm: Some(1.0) };
        let optimizer = Adamw::new(config, &weights, &gradients, &kernels);
        let mut updater = Updater { loss: Loss::default(), gradients, optimizer, dtype, seed: 3 };
        // The pool lends a block to what takes at least half of it: the extremes warm it for everything between them.
        let mut batches: Vec<Prepared> = (0..80).map(|seed| batch(&encoder, seed)).collect();
        batches.sort_by_key(|part| part.batch.sequences());
        let most = batches.split_off(70);
        let measured = batches.split_off(10);
        let fewest = batches;
        let mut model = Model { encoder, weights, tokenizer: tokenizer() };
        let mut step = |micro_batches: &[Prepared]| {
            updater.update(&mut model, micro_batches, 1e-4, &kernels, &Lane::off()).unwrap()
        };
        for micro_batches in most.chunks(2).chain(fewest.chunks(2)) {
            step(micro_batches);
        }

        let from_pool = kernels.pool().stats().system_allocations;
        let from_process = LARGE_ALLOCATIONS.load(Ordering::Relaxed);
        for micro_batches in measured.chunks(2) {
            step(micro_batches);
        }
        let from_process = LARGE_ALLOCATIONS.load(Ordering::Relaxed) - from_process;
        let from_pool = kernels.pool().stats().system_allocations - from_pool;
        assert_eq!(from_pool, 0, "{dtype}, {policy:?}: allocations of the pool in thirty updates");
        assert_eq!(from_process, 0, "{dtype}, {policy:?}: allocations of {LARGE} bytes and more in thirty updates");
    }
}
