"""Processes that tokenize, one per core."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.tokenize_lines import Lines, TokenizedLines, tokenize_lines
from dynapipe_hpc.data.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenizePool:
    """Tokenizes blocks of lines side by side."""

    executor: ProcessPoolExecutor

    def submit(self, lines: Lines) -> Future[TokenizedLines]:
        """Queues some lines."""
        return self.executor.submit(_tokenize, lines)


@contextmanager
def open_pool(tokenizer: Tokenizer, skip_bad: bool, n_workers: int) -> Iterator[TokenizePool]:
    """Starts the workers, and ends them when the block ends, however it ends.

    Raises:
        RunError: A worker died.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    executor = ProcessPoolExecutor(n_workers, context, _prepare, (tokenizer, skip_bad))
    with _undisturbed():
        executor.submit(int)  # the first task starts all workers
    try:
        yield TokenizePool(executor)
    except BrokenProcessPool:
        raise RunError(
            "a worker process died, perhaps for lack of memory; try fewer: --workers N"
        ) from None
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Holds signals back: a worker of which nobody knows yet would be waited for for ever.

    Processes that start inside hold them back for good. Ctrl-C reaches every process of the
    terminal, but the first one ends the others.
    """
    held_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held_before)


# The one state of a worker, set as it starts: sending the vocabulary with every block is slow.
_settings: list[tuple[Tokenizer, bool]] = []


def _prepare(tokenizer: Tokenizer, skip_bad: bool) -> None:
    threading.Thread(target=_end_with_the_first_process, daemon=True).start()
    # The workers are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _settings.append((tokenizer, skip_bad))


def _end_with_the_first_process() -> None:
    """A first process that was killed could not end its workers, which would wait for ever."""
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _tokenize(lines: Lines) -> TokenizedLines:
    [(tokenizer, skip_bad)] = _settings
    return tokenize_lines(lines, tokenizer, skip_bad)
