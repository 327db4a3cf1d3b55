"""A rank of `dynapipe-hpc` on a device that is not there, and what it did wrong.

    python -m tests.rehearsal.watched_rank REPORTS VERB ARGUMENTS...

It is to be started with the libraries that `build` makes, by mpiexec. A file of the folder REPORTS
gets the failures of the rank, each with the lines of this package that led to it.
"""

import ctypes
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tests.mutants.changed_module import ChangedModule
from tests.rehearsal.mistakes import MISTAKES
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MAX_SHOWN = 3
_LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
_VISITOR = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_long)
DEVICE = ctypes.CDLL(None)
DEVICE.rehearsal_access.argtypes = [
    *(ctypes.c_void_p, ctypes.c_void_p),
    *(ctypes.c_size_t, ctypes.c_int),
]


class Failures:
    """Reports of the device, counted by kind; the first of each place is shown."""

    def __init__(self) -> None:
        """Listens to the device."""
        self.n_of_kind = Counter[str]()
        self.shown = defaultdict[str, list[str]](list)
        self._lock = threading.Lock()
        self._listener = _LISTENER(self._note)
        DEVICE.rehearsal_listen(self._listener)

    def _note(self, kind: bytes, text: bytes) -> None:
        name = kind.decode()
        shown = f"{text.decode()}: {' < '.join(own_lines())}"
        with self._lock:
            self.n_of_kind[name] += 1
            if shown not in self.shown[name] and len(self.shown[name]) < MAX_SHOWN:
                self.shown[name].append(shown)


def own_lines() -> Iterator[str]:
    """Lines of the package that the calling thread is in, the innermost first."""
    for frame in reversed(traceback.extract_stack()):
        if "dynapipe_hpc" in frame.filename:
            yield f"{frame.filename.rpartition('dynapipe_hpc/')[2]}:{frame.lineno}"


class Accesses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells the device which memory each operation reads and writes, and on which stream."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation, then notes what it has touched."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        is_view = any(
            each.alias_info and not each.alias_info.is_write for each in func._schema.returns
        )
        # Transfers are seen by the device itself, on the streams of their groups.
        if func.namespace == "c10d" or is_view or "empty" in func.__name__:
            return result
        stream = torch.cuda.current_stream().cuda_stream
        written = []
        for name, values in named(func._schema.arguments, args, kwargs):
            is_write = bool(name.alias_info and name.alias_info.is_write)
            for tensor in tensors(values):
                access(stream, tensor, is_write=is_write)
                written += [tensor.data_ptr()] if is_write else []
        for tensor in tensors(result):
            if tensor.data_ptr() not in written:
                access(stream, tensor, is_write=True)
        return result


def named(arguments: Sequence[Any], args: Sequence[Any], kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments of an operation by its schema, with their values."""
    for index, argument in enumerate(arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def tensors(values: object) -> list[Tensor]:
    """The tensors on a device among some values."""
    return [x for x in tree_leaves(values) if isinstance(x, Tensor) and x.is_cuda and x.numel()]


def access(stream: int, tensor: Tensor, *, is_write: bool) -> None:
    """Notes that a stream reads or writes the bytes of a tensor."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in sizes)
    DEVICE.rehearsal_access(stream, tensor.data_ptr(), extent * tensor.itemsize, int(is_write))


class Watch:
    """The moments of a run at which more is forbidden to it."""

    def __init__(self, *, notes_accesses: bool) -> None:
        """Watches this process from now on; noting accesses takes time."""
        self.host_s, self.n_instructions = 0.0, 0
        self.notes_accesses = notes_accesses
        # Not at the top: a mistake is put in place before the package is imported.
        module: Any = import_module("dynapipe_hpc.experiment.run.rank")
        launched_plan: Any = import_module("dynapipe_hpc.executor.run").LaunchedPlan
        reserve_memory, launch = module.reserve_memory, module.launch_plan
        finish = launched_plan.finish

        def reserve_watched(*arguments: Any) -> None:
            reserve_memory(*arguments)
            DEVICE.rehearsal_reserved(1)

        def launch_watched(plan: Any, *arguments: Any, **named_ones: Any) -> Any:
            if plan.is_forward_only:
                return launch(plan, *arguments, **named_ones)
            DEVICE.rehearsal_iteration(1)
            start_s = time.perf_counter()
            launched = self._run(lambda: launch(plan, *arguments, **named_ones))
            if plan.iteration:
                self.host_s += time.perf_counter() - start_s
                self.n_instructions += len(plan.instructions)
            return launched

        def finish_watched(launched: Any) -> Any:
            DEVICE.rehearsal_iteration(0)  # the end of an iteration may wait
            return finish(launched)

        module.reserve_memory = reserve_watched
        module.launch_plan = launch_watched
        launched_plan.finish = finish_watched

    def _run(self, launch: Callable[[], Any]) -> Any:
        if not self.notes_accesses:
            return launch()
        with Accesses():  # type: ignore[no-untyped-call]
            return launch()


def counts_of_device() -> dict[str, int]:
    """Numbers of calls that the device has counted."""
    counts: dict[str, int] = {}

    def note(name: bytes, n: int) -> None:
        counts[name.decode()] = n

    DEVICE.rehearsal_counts(_VISITOR(note))
    return counts


def main(reports: Path, arguments: list[str]) -> int:
    if number := os.environ.get("REHEARSAL_MISTAKE"):
        mutant = MISTAKES[int(number)].mutant
        finder = ChangedModule(mutant.module, mutant.path, mutant.changed_source())
        sys.meta_path.insert(0, finder)
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    local_rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    DEVICE.rehearsal_own_device(local_rank % int(os.environ["REHEARSAL_DEVICES"]))
    failures = Failures()
    watch = Watch(notes_accesses="REHEARSAL_TIMES" not in os.environ)
    code: int = import_module("dynapipe_hpc.cli.main").main(arguments)
    DEVICE.rehearsal_reserved(0)
    # Noting accesses imports it, too; otherwise it costs a run seconds.
    if not watch.notes_accesses and "torch._dynamo" in sys.modules:
        failures.n_of_kind["a compiler was imported"] += 1
    report = {
        "failures": dict(failures.n_of_kind),
        "shown": dict(failures.shown),
        "counts": counts_of_device(),
        "host_us_per_instruction": round(1e6 * watch.host_s / max(1, watch.n_instructions), 1),
    }
    (reports / f"{rank}.json").write_text(json.dumps(report, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
