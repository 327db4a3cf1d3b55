"""The processes that tokenize: this one, or several worker processes, one per core."""

import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.text.open_lines import Lines
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_lines import TokenizedLines, tokenize_lines

MAX_TMPDIR_BYTES = 75
"""Longest TMPDIR in which the path of a socket has 107 bytes, the most that Linux takes."""


TokenizePool = Callable[[Iterable[Lines]], Iterator[TokenizedLines]]
"""Function that tokenizes blocks of lines, in order, and reads only a few blocks ahead."""


@contextmanager
def open_pool(recipe: Recipe, n_workers: int) -> Iterator[TokenizePool]:
    """Starts the worker processes, and ends them when the block ends, even by an exception.

    With one worker, this process does the work itself: on one core two would only compete.
    """
    if n_workers == 1:
        _tokenize_with_one_thread()
        yield lambda blocks: (tokenize_lines(lines, recipe) for lines in blocks)
        return
    context = get_context("forkserver")
    renders = ["transformers.utils.chat_template_utils"] if recipe.template else []
    context.set_forkserver_preload([__name__, *renders])
    others = active_children()
    executor = ProcessPoolExecutor(n_workers, context, _prepare, (recipe,))
    try:
        with _undisturbed(), _socket_in_short_folder():
            executor.submit(int)  # starts a worker, and the process that all are forked from
        yield lambda blocks: _by_workers(blocks, executor, most_waiting=2 * n_workers)
    except BrokenProcessPool:
        # The executor sends the others SIGTERM, which is blocked in them, and waits for their end.
        for worker in active_children():
            if worker not in others:
                worker.kill()
        raise RunError(
            "a worker process died, perhaps for lack of memory; try fewer workers: --workers N"
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


def _by_workers(
    blocks: Iterable[Lines], executor: ProcessPoolExecutor, most_waiting: int
) -> Iterator[TokenizedLines]:
    """Bounds the number of waiting blocks; the executor alone would read all text at once."""
    waiting: deque[Future[TokenizedLines]] = deque()
    for lines in blocks:
        with _undisturbed():  # a task starts one more worker while none is idle
            waiting.append(executor.submit(_tokenize, lines))
        if len(waiting) > most_waiting:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Blocks signals: a process that is not yet registered would be waited for forever.

    Processes that start inside keep them blocked. Ctrl-C reaches every process of the terminal,
    but only the first one handles it and ends the others.
    """
    held_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held_before)


@contextmanager
def _socket_in_short_folder() -> Iterator[None]:
    before = tempfile.tempdir
    try:
        if len(os.fsencode(tempfile.gettempdir())) > MAX_TMPDIR_BYTES:
            tempfile.tempdir = "/tmp"  # noqa: S108 - a folder of its own in it, for this user only
        yield
    except OSError as error:
        raise RunError(
            f"worker processes cannot be started: {error.strerror or error}; set TMPDIR to a "
            "folder that can be written, or use none: --workers 1"
        ) from error
    finally:
        tempfile.tempdir = before


# The only state of a worker process, set when it starts: it would be slow to send the vocabulary
# with each block.
_recipe: list[Recipe] = []


def _prepare(recipe: Recipe) -> None:
    threading.Thread(target=_end_with_the_first_process, daemon=True).start()
    _tokenize_with_one_thread()
    _recipe.append(recipe)


def _tokenize_with_one_thread() -> None:
    """Turns off the threads of the tokenizer; the processes are the parallelism."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _end_with_the_first_process() -> None:
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _tokenize(lines: Lines) -> TokenizedLines:
    [recipe] = _recipe
    return tokenize_lines(lines, recipe)
