//! Findings on real traces: the sentences that hold for them, and none that does not.

mod support;

use profile::analysis::critical_path::{Window, critical_path};
use profile::analysis::findings::{Finding, MOST, findings};
use profile::analysis::{self, analyse};
use profile::{Host, Run};
use support::{files, naive, traces};

/// The rules that speak on a set, in their order.
fn rules(set: &str) -> Option<Vec<&'static str>> {
    let dir = tempfile::tempdir().unwrap();
    let profile = naive::import(&files(&traces()?.join(set)), &dir.path().join("p"));
    let run = Run::load(&profile, None, Host::Slices).unwrap();
    let analyses = analyse(&run, &profile, &analysis::Options::default()).unwrap();
    let paths = run.ranks.iter().map(|rank| critical_path(&run, &profile, rank.info.rank, &Window::Whole, 5).unwrap());
    let found: Vec<Finding> = findings(&run, &profile, &analyses, &paths.flatten().collect::<Vec<_>>()).unwrap();
    println!("{set}");
    for finding in &found {
        println!("  {} {} {:.1} %: {}", finding.rule, finding.ns, finding.share * 100.0, finding.text);
        if let Some(link) = finding.link {
            assert!(link.from_ns < link.to_ns, "{set}: {finding:?}");
            assert!(run.tracks.iter().any(|track| track.track == link.track), "{set}: {finding:?}");
        }
        assert!(!finding.text.contains("NaN") && finding.text.ends_with('.'), "{set}: {finding:?}");
        assert!(finding.share <= 1.0 && finding.ns > 0 && !finding.ranks.is_empty(), "{set}: {finding:?}");
    }
    assert!(found.len() <= MOST);
    assert!(found.windows(2).all(|pair| pair[0].ns >= pair[1].ns), "{set}");
    Some(found.iter().map(|finding| finding.rule).collect())
}

#[test]
fn what_is_found_in_real_traces() {
    let expected: &[(&str, &[&str])] = &[
        // Recommendation models: many short kernels, large embedding exchanges; rank 7 is late.
        ("dlrm-8ranks", &["launch_bound", "exposed_communication", "stragglers"]),
        ("a100-control", &["exposed_communication", "launch_bound"]),
        // The same on a V100 without tensor cores in use: bound by its kernels.
        ("v100-test", &["low_tensor_core_use", "exposed_copies", "exposed_communication"]),
        ("v100-multistep", &["launch_bound", "low_tensor_core_use", "exposed_communication"]),
        ("v100-ns", &["low_tensor_core_use"]),
        ("a100-nccl", &["launch_bound", "host_work", "exposed_communication"]),
        // Replays CUDA graphs whose parts wait for each other.
        ("a100-6streams", &["idle_unexplained", "exposed_communication"]),
        ("sampled-2ranks", &["exposed_communication", "host_work", "idle_unexplained", "stragglers"]),
        // A data loader without workers.
        ("rn50-2021", &["low_tensor_core_use", "data_loading", "launch_bound"]),
        ("h100-stacks", &["data_loading"]),
        ("edge-cases/cpu-only", &[]),
        ("edge-cases/triton", &[]),
        ("edge-cases/critical-path-simple-add", &["host_allocation", "host_work"]),
        ("edge-cases/critical-path-alexnet", &["host_allocation", "host_work"]),
        ("edge-cases/amd-mi250", &["host_work", "launch_bound"]),
        ("edge-cases/mtia-inference", &["dominant_kernel", "host_work"]),
    ];
    let mut wrong = Vec::new();
    for (set, first) in expected {
        let Some(rules) = rules(set) else { return };
        wrong.extend((!rules.starts_with(first)).then(|| format!("{set}: {rules:?}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
