"""What a result has to say about the machine it was measured on."""

from __future__ import annotations

import os
import platform
import resource
from importlib import metadata
from pathlib import Path


def physical_cores() -> int:
    """Physical cores this process may use: hardware threads that share a core count once."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return len(cores)


def cpu_model() -> str:
    """The CPU's name with the vector extensions that decide the rates."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    notable = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16") if flag in flags]
    return f"{fields.get('model name', platform.machine())} ({', '.join(notable)})"


def describe(threads: int) -> dict[str, object]:
    """CPU, threads, versions and the load at this moment (the bench itself is part of it)."""
    packages = ("torch", "transformers", "onnxruntime", "litserve", "HolisticTraceAnalysis", "pandas")
    installed = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    return {
        "cpu": cpu_model(),
        "cores": physical_cores(),
        "threads": threads,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in packages if name in installed},
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def foreign_cpu_seconds() -> float:
    """CPU time that others have used since boot: all of the machine's, less this process's and its ended children's.

    Time stolen by a hypervisor counts as others'. Only differences between two calls mean anything.
    """
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in usages)
