//! How devices spend the time in which they work: communication, copies, kernels, precision, queues.

use super::words::{counted, short};
use super::{Facts, Finding, Hit, Link, percent, time, verb};
use crate::analysis::intervals::{Interval, total};
use crate::analysis::precision_rules::{Precision, of_name, uses_tensor_cores};
use crate::analysis::work::{Kind, Rank, Work};

/// Hiding communication is work; below this share it is not worth it.
const LEAST_COMMUNICATION: f64 = 0.05;
/// Pinning memory is one argument, so less is worth a word.
const LEAST_COPIES: f64 = 0.02;
/// Copies that are pinned already hide only behind other work, which is more to ask.
const LEAST_PINNED: f64 = 0.10;
/// A kernel with less than a third of the time is one among others.
const LEAST_KERNEL: f64 = 0.35;
/// Names of computing kernels that a profile must have before one of them can dominate.
const FEWEST_KERNELS: usize = 3;
/// Matrix kernels in FP32 with less time than this gain less than the risk of lower precision.
const LEAST_PRECISION: f64 = 0.10;
/// A full queue shorter than this is a burst.
const LEAST_QUEUE: f64 = 0.05;

/// Models with tensor (matrix) cores by what these multiply besides FP32 and FP64, and what to do about that. The first line that
/// names a model holds.
const TENSOR_CORES: &[(&[&str], &str)] = &[
    // Volta and Turing.
    (
        &["V100", "V100S", "TITAN V", "T4", "TITAN RTX", "RTX 2060", "RTX 2070", "RTX 2080", "Quadro RTX", "GV100"],
        "use FP16 (autocast; these cores have no BF16 and no TF32)",
    ),
    // CDNA.
    (
        &[
            "MI100", "MI200", "MI210", "MI250", "MI250X", "MI300", "MI300A", "MI300X", "MI308X", "MI325X", "MI325",
            "MI350", "MI350X", "MI355", "MI355X",
        ],
        "use BF16 or FP16 (autocast)",
    ),
    // Ampere and later.
    (
        &[
            "A100", "A800", "A10", "A10G", "A30", "A40", "A2000", "A4000", "A4500", "A5000", "A6000", "A16", "A2",
            "L4", "L20", "L40", "L40S", "H100", "H200", "H800", "H20", "GH200", "B100", "B200", "GB200", "B300",
            "GB300", "RTX", "PG509",
        ],
        "use BF16 or FP16 (autocast), or allow TF32",
    ),
];

/// What to do to use the tensor cores of this model; none if it has none that are known.
fn tensor_cores(model: &str) -> Option<&'static str> {
    // `A100` is in `NVIDIA A100-SXM4-80GB`, and `T4` is not in `T400`.
    let holds = |name: &str| {
        model.match_indices(name).any(|(at, _)| {
            let before = model[..at].chars().next_back();
            let after = model[at + name.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
        })
    };
    TENSOR_CORES.iter().find(|(models, _)| models.iter().any(|name| holds(name))).map(|line| line.1)
}

/// Findings about the work of devices.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let found = [communication(facts), copies(facts), pinned(facts), dominant(facts), precision(facts), queue(facts)];
    found.into_iter().flatten().collect()
}

/// What is in `of` and not in `without`; both are unions.
fn subtract(of: &[Interval], without: &[Interval]) -> Vec<Interval> {
    let mut left = Vec::new();
    let mut next = 0;
    for &(from, to) in of {
        let mut at = from;
        while without.get(next).is_some_and(|other| other.1 <= from) {
            next += 1;
        }
        for other in without[next..].iter().take_while(|other| other.0 < to) {
            if other.0 > at {
                left.push((at, other.0));
            }
            at = at.max(other.1);
        }
        if at < to {
            left.push((at, to));
        }
    }
    left
}

/// Time with work of one kind and without computation: how much, and the longest stretch.
fn exposed(rank: &Rank<'_>, take: impl Fn(&Work) -> bool) -> (i64, Option<Link>) {
    let union = rank.union_of(&rank.streams, &take);
    let left = subtract(&union, &rank.union_of(&rank.streams, |work| work.kind == Kind::Compute));
    let longest = left.iter().max_by_key(|interval| (interval.1 - interval.0, std::cmp::Reverse(interval.0)));
    let link = longest.and_then(|&(from_ns, to_ns)| {
        let work = rank.work.iter().find(|work| take(work) && work.ts <= from_ns && work.end() > from_ns)?;
        Some(Link { track: rank.events.device[work.event as usize].track, from_ns, to_ns })
    });
    (total(&left), link)
}

fn span(facts: &Facts<'_>, rank: i64) -> i64 {
    facts.analyses.ranks.iter().find(|of| of.rank == rank).map_or(0, |of| of.temporal.span_ns)
}

/// One hit for each rank, as `measure` has it.
fn by_rank(facts: &Facts<'_>, measure: impl Fn(&Rank<'_>) -> (i64, Option<Link>)) -> Vec<Hit> {
    let hit = |rank: &Rank<'_>| {
        let ((ns, link), number) = (measure(rank), rank.events.info.rank);
        Hit { rank: number, device: None, ns, span_ns: span(facts, number), link }
    };
    facts.works.iter().map(hit).collect()
}

fn communication(facts: &Facts<'_>) -> Option<Finding> {
    let hits = by_rank(facts, |rank| exposed(rank, |work| work.kind == Kind::Communication));
    facts.finding("exposed_communication", LEAST_COMMUNICATION, hits, |worst, count| {
        let overlap = facts.analyses.ranks.iter().find(|of| of.rank == worst.rank).and_then(|of| of.overlap.share);
        format!(
            "{} {} {} in communication that no computation hides ({} of its communication is hidden): overlap it with the backward pass \
             (asynchronous collectives, other bucket sizes), or send less.",
            facts.who(worst, count),
            verb(count, "spends", "spend"),
            facts.amount(worst, count),
            percent(overlap.unwrap_or(0.0)),
        )
    })
}

/// Kineto and Nsight write `Memcpy HtoD (Pageable -> Device)`.
fn pageable(rank: &Rank<'_>, work: &Work) -> bool {
    work.kind == Kind::Memory && rank.run.text(work.name).contains("Pageable")
}

fn copies(facts: &Facts<'_>) -> Option<Finding> {
    let hits = by_rank(facts, |rank| exposed(rank, |work| pageable(rank, work)));
    facts.finding("pageable_copies", LEAST_COPIES, hits, |worst, count| {
        let of = facts.works.iter().find(|of| of.events.info.rank == worst.rank);
        let copies = of.map_or(0, |of| of.work.iter().filter(|work| pageable(of, work)).count());
        format!(
            "{} {} {} on {} from or to pageable host memory while nothing computes: such copies block the host; pin the memory \
             (pin_memory=True) and copy with non_blocking=True.",
            facts.who(worst, count),
            verb(count, "spends", "spend"),
            facts.amount(worst, count),
            counted(copies as u64, "copy", "copies"),
        )
    })
}

fn pinned(facts: &Facts<'_>) -> Option<Finding> {
    let copy = |rank: &Rank<'_>, work: &Work| work.kind == Kind::Memory && !pageable(rank, work);
    let hits = by_rank(facts, |rank| exposed(rank, |work| copy(rank, work)));
    facts.finding("exposed_copies", LEAST_PINNED, hits, |worst, count| {
        let of = facts.works.iter().find(|of| of.events.info.rank == worst.rank);
        let copies = of.map_or(0, |of| of.work.iter().filter(|work| copy(of, work)).count());
        format!(
            "{} {} {} on {} and fills while nothing computes: copy ahead on a stream of its own, keep on the device what comes \
             again (weights, caches), or move less.",
            facts.who(worst, count),
            verb(count, "spends", "spend"),
            facts.amount(worst, count),
            counted(copies as u64, "copy", "copies"),
        )
    })
}

fn dominant(facts: &Facts<'_>) -> Option<Finding> {
    let first = |rank: i64| {
        let of = facts.analyses.ranks.iter().find(|of| of.rank == rank)?;
        // What waits (MTIA's `event_wait`) does not compute, whatever its class.
        let mut computing = of.kernels.rows.iter().filter(|row| row.class == "compute" && !row.name.contains("wait"));
        let longest = computing.next()?;
        // Of a program with one or two kernels one has most of the time; that says nothing.
        computing.nth(FEWEST_KERNELS - 2).map(|_| longest)
    };
    let hits = by_rank(facts, |rank| {
        let Some(kernel) = first(rank.events.info.rank) else { return (0, None) };
        let number = rank.run.texts.find(&kernel.name);
        let longest = rank.work.iter().filter(|work| Some(work.name) == number).max_by_key(|work| work.dur);
        let link = |work: &Work| Link {
            track: rank.events.device[work.event as usize].track,
            from_ns: work.ts,
            to_ns: work.end(),
        };
        (kernel.durations.sum_ns.min(span(facts, rank.events.info.rank)), longest.map(link))
    });
    facts.finding("dominant_kernel", LEAST_KERNEL, hits, |worst, count| {
        let (name, runs, mean) = first(worst.rank).map_or((String::new(), 0, 0), |kernel| {
            (short(&kernel.name), kernel.durations.count, kernel.durations.mean_ns as i64)
        });
        format!(
            "One kernel, {name}, takes {} on {} ({} of {}): start there, with a fused, better tuned or lower-precision version.",
            facts.amount(worst, count),
            facts.who(worst, count).replacen("Rank", "rank", 1).replacen("Both", "both", 1).replacen("All", "all", 1),
            counted(runs, "run", "runs"),
            time(mean),
        )
    })
}

/// Whether a kernel multiplies matrices (or convolves) in FP32 without tensor cores, as far as its name says.
fn is_slow_matrix_kernel(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let words = ["gemm", "scudnn", "convolve", "conv2d", "wgrad", "dgrad", "fprop"];
    words.iter().any(|word| lower.contains(word))
        && !uses_tensor_cores(name)
        && of_name(name) == Some(Precision::Fp32)
        && !lower.starts_with("nccl")
}

fn precision(facts: &Facts<'_>) -> Option<Finding> {
    let capable = |rank: i64| {
        let mut models = facts.run.devices.iter().filter(|device| device.rank == rank);
        models.find_map(|device| Some((device.name.as_str(), tensor_cores(&device.name)?)))
    };
    let hits = by_rank(facts, |rank| {
        let number = rank.events.info.rank;
        let Some(of) = facts.analyses.ranks.iter().find(|of| of.rank == number && capable(number).is_some()) else {
            return (0, None);
        };
        let slow = of.kernels.rows.iter().filter(|row| row.class == "compute" && is_slow_matrix_kernel(&row.name));
        let (ns, longest) = slow.fold((0i64, None::<&str>), |(ns, longest), row| {
            (ns.saturating_add(row.durations.sum_ns), longest.or(Some(&row.name)))
        });
        let run = longest.and_then(|name| rank.work.iter().find(|work| rank.run.text(work.name) == name));
        let link = run.map(|work| Link {
            track: rank.events.device[work.event as usize].track,
            from_ns: work.ts,
            to_ns: work.end(),
        });
        (ns.min(of.temporal.span_ns), link)
    });
    facts.finding("low_tensor_core_use", LEAST_PRECISION, hits, |worst, count| {
        let (model, advice) = capable(worst.rank).unwrap_or_default();
        format!(
            "{} {} {} on matrix products and convolutions in FP32 without tensor cores, which a {model} has: {advice}.",
            facts.who(worst, count),
            verb(count, "spends", "spend"),
            facts.amount(worst, count),
        )
    })
}

fn queue(facts: &Facts<'_>) -> Option<Finding> {
    let hits = by_rank(facts, |rank| {
        let of = facts.analyses.ranks.iter().find(|of| of.rank == rank.events.info.rank);
        let fullest = of.and_then(|of| of.queues.iter().max_by_key(|queue| queue.full_ns));
        let whole = |queue: &crate::analysis::StreamQueue| {
            let stream = rank.streams.iter().find(|stream| stream.track == queue.track)?;
            let (first, last) = (&rank.work[stream.range.start], &rank.work[stream.range.end - 1]);
            Some(Link { track: queue.track, from_ns: first.ts, to_ns: last.end() })
        };
        (fullest.map_or(0, |queue| queue.full_ns), fullest.and_then(whole))
    });
    facts.finding("queue_full", LEAST_QUEUE, hits, |worst, count| {
        format!(
            "{}: the launch queue is full {}, so launch calls block the host: launch less and larger kernels (fusion, CUDA graphs), or synchronise \
             once per step so that the host can do other work.",
            facts.who(worst, count),
            facts.amount(worst, count),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_union() {
        let of = [(0, 10), (20, 30), (40, 50), (60, 70)];
        assert_eq!(subtract(&of, &[]), of);
        assert_eq!(subtract(&of, &[(0, 100)]), []);
        let without = [(-5, 2), (4, 6), (8, 25), (42, 43), (44, 44), (50, 60)];
        assert_eq!(subtract(&of, &without), [(2, 4), (6, 8), (25, 30), (40, 42), (43, 44), (44, 50), (60, 70)]);
    }

    #[test]
    fn advice_on_precision_fits_the_model() {
        for model in
            ["Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti", "Quadro RTX 6000", "NVIDIA TITAN V"]
        {
            let advice = tensor_cores(model).unwrap();
            assert!(
                advice.starts_with("use FP16 (autocast; these cores have no BF16 and no TF32"),
                "{model}: {advice}"
            );
        }
        for model in
            ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA A10G", "NVIDIA GeForce RTX 3090", "PG509-210"]
        {
            let advice = tensor_cores(model).unwrap();
            assert!(["FP16", "BF16", "TF32"].iter().all(|word| advice.contains(word)), "{model}: {advice}");
        }
        for model in ["AMD Instinct MI250X", "AMD Instinct MI300X"] {
            let advice = tensor_cores(model).unwrap();
            assert!(
                advice.contains("FP16") && advice.contains("BF16") && !advice.contains("TF32"),
                "{model}: {advice}"
            );
        }
        for model in ["Tesla P100-PCIE-16GB", "NVIDIA T400", "AMD GPU", "cpu/x86_64", ""] {
            assert_eq!(tensor_cores(model), None, "{model}");
        }
    }

    #[test]
    fn matrix_kernels_in_full_precision_are_told_by_their_names() {
        assert!(is_slow_matrix_kernel("volta_sgemm_128x64_nn"));
        assert!(is_slow_matrix_kernel("ampere_sgemm_32x32_sliced1x4_tn"));
        assert!(is_slow_matrix_kernel("volta_scudnn_128x64_relu_small_nn_v1"));
        assert!(!is_slow_matrix_kernel("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn"));
        assert!(!is_slow_matrix_kernel("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32"));
        assert!(!is_slow_matrix_kernel("void at::native::vectorized_elementwise_kernel<4, float>"));
    }
}
