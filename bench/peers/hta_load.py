"""HTA's side: load the traces of a folder, and with --analyse run what its users run; seconds of each as a line of JSON."""

import argparse
import json
import logging
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder")
parser.add_argument("--analyse", action="store_true")
args = parser.parse_args()

from hta.trace_analysis import TraceAnalysis  # noqa: E402 (imports are not what is timed, warnings are off first)

start = time.perf_counter()
analysis = TraceAnalysis(trace_dir=args.folder, include_last_profiler_step=True)
seconds, analyses = time.perf_counter() - start, None
if args.analyse:
    ranks = list(analysis.t.traces)
    start = time.perf_counter()
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=15, include_memory_kernels=True)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_queue_length_summary(ranks=ranks)
    analysis.get_memory_bw_summary(ranks=ranks)
    for rank in ranks:
        analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)
    analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
    analyses = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "analyses": analyses}))
