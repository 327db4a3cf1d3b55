"""Memory that a process has freed, which the C library keeps or returns to the kernel."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)
_NEVER = -1


def keep_freed_memory() -> bool:
    """Lets the C library keep freed memory for the next allocation, whatever its size.

    By default it maps and unmaps every tensor of more than 32 MiB, and returns what is free at the
    end of its heap, so that the kernel clears the same pages in every pass. Threads other than the
    main one have heaps of at most 64 MiB; what is larger is still mapped anew there.

    Returns:
        Whether it does so from now on; another library than glibc has no such setting.
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None:
        return False
    return bool(set_parameter(_MMAP_MAX, 0) and set_parameter(_TRIM_THRESHOLD, _NEVER))
