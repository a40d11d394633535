"""Where tensors are computed: this process's GPU, or the CPU; and how much memory there is."""

import os
import re
import sys
from pathlib import Path

import torch


def pick_device(name: str = "auto") -> torch.device:
    """ "auto" is this process's GPU if there is one, else the CPU.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device is {name!r}; expected 'auto', 'cpu', 'cuda' or 'cuda:1'")
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but this PyTorch sees no GPU; use --device cpu")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        count = torch.cuda.device_count()
        if device.index >= count:
            gpus = "one GPU" if count == 1 else f"{count} GPUs"
            raise ValueError(f"there is no {device}: this PyTorch sees {gpus}; use --device cpu, or fewer processes")
        torch.cuda.set_device(device)
    return device


def resident_memory() -> int:
    """Bytes of memory that this process has now; where the system doesn't say, the most that it had.

    >>> resident_memory() > 10_000_000
    True
    """
    sizes = Path("/proc/self/statm")
    if sizes.is_file():
        return int(sizes.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if os.name != "posix":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def cpu_family() -> tuple[str, int]:
    """Who made the processor, and which family of theirs it is, where the system says so as Linux does.

    >>> len(cpu_family())
    2
    """
    cores = Path("/proc/cpuinfo")
    said = cores.read_text(errors="replace")[:4000] if cores.is_file() else ""
    maker, family = (re.search(rf"^{key}\s*: (.+)$", said, re.MULTILINE) for key in ("vendor_id", "cpu family"))
    return (maker[1], int(family[1])) if maker and family else ("", 0)


def memory_of(device: torch.device | str = "cpu") -> int:
    """Bytes of memory that a device has in all, as far as this process may use them.

    >>> memory_of("cpu") > 100_000_000
    True
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    bounds = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    if os.name == "posix":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        bounds += [] if limit == resource.RLIM_INFINITY else [limit]
    group = Path("/sys/fs/cgroup/memory.max")  # a container's
    if group.is_file() and (text := group.read_text().strip()).isdecimal():
        bounds.append(int(text))
    return min(bounds, default=1 << 62)
