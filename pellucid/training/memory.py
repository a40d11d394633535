"""Memory that stays with the process from one step to the next."""

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # numbers of mallopt's parameters, in glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, for the whole process from now on; whether it could be told.

    A step frees what the next one allocates. By default glibc hands large pieces back to the system in between and gets
    them again page by page, each page zeroed before it is first written: a tenth of a step on the CPU and more. Kept,
    the process stays as large as its largest step. Other C libraries are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wishes = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 64 << 20}  # nothing mapped apart, nothing trimmed, few calls
    return [mallopt(parameter, value) for parameter, value in wishes.items()] == [1, 1, 1]
