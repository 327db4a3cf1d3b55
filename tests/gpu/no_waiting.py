"""A block in which nothing may wait for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waiting() -> Iterator[None]:
    """Block in which an operation that makes the host wait for the GPU raises RuntimeError."""
    _set_mode("error")
    try:
        yield
    finally:
        _set_mode("default")


def _set_mode(mode: str) -> None:
    with warnings.catch_warnings():
        # torch says that this is a prototype, after it has set the mode: as an error, that would
        # leave the mode to all tests that follow.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
