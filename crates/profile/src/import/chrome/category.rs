//! What the categories of Kineto's writers mean, from 2021 on.

/// What a slice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A slice of a host thread, and its kind in the table `host`.
    Host(&'static str),
    /// A slice of a device's stream, and its kind in the table `device`.
    Device(&'static str),
    /// Unknown to this program: kept as a host slice.
    Unknown,
}

/// The meaning of a slice. MTIA's work has one category; its names say what is a wait and what a copy.
pub(super) fn meaning(category: &str, name: &str) -> Meaning {
    if category == "mtia_ccp_events" {
        return Meaning::Device(match name {
            "event_wait" | "event_record" => "sync",
            name if name.starts_with("dma") => "memcpy",
            _ => "other",
        });
    }
    of_category(category)
}

fn of_category(category: &str) -> Meaning {
    use Meaning::{Device, Host, Unknown};
    match category {
        "cpu_op" | "Operator" | "operator" => Host("operator"),
        "user_annotation" => Host("annotation"),
        "cuda_runtime" | "Runtime" | "hip_runtime" | "mtia_runtime" | "xpu_runtime" | "privateuse1_runtime" => {
            Host("runtime")
        }
        "cuda_driver" | "hip_driver" | "xpu_driver" | "privateuse1_driver" => Host("driver"),
        "python_function" => Host("python"),
        "overhead" => Host("overhead"),
        "span" => Host("span"),
        "sync" => Host("sync"),
        "kernel" | "Kernel" => Device("kernel"),
        "gpu_memcpy" | "Memcpy" => Device("memcpy"),
        "gpu_memset" | "Memset" => Device("memset"),
        "collective_comm" | "collective" => Device("collective"),
        "cuda_sync" | "xpu_sync" => Device("sync"),
        "gpu_user_annotation" => Device("annotation"),
        "mtia_workloadd" | "device" => Device("other"),
        "" | "Trace" | "cuda_profiler_range" | "external_correlation" | "other" => Host("other"),
        _ if category.ends_with("_runtime") => Host("runtime"),
        _ if category.ends_with("_driver") => Host("driver"),
        _ => Unknown,
    }
}
