"""Tokenizing of JSON lines into blocks of samples, by this process or by several, one per core."""

import json
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.text.chat_template import ChatTemplate, Rendered
from dynapipe_hpc.data.text.chat_turns import start_of_turn, turn_samples
from dynapipe_hpc.data.text.conversation import Conversation, Texts, check_no_context, n_shared
from dynapipe_hpc.data.text.open_lines import BYTE_ORDER_MARK, MAX_LINE_BYTES, Lines
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import RecordFormat, kind_of
from dynapipe_hpc.data.text.records import FormatError, check_first_line, sample_of, task_of
from dynapipe_hpc.data.text.tokenizers import Tokenizer, encode_answer, utf8_of
from dynapipe_hpc.data.token_block import TokenBlock, TokenizedSample
from dynapipe_hpc.data.trained_tokens import Span


def check_special_tokens(conversation: Conversation, tokenizer: Tokenizer) -> None:
    """Refuses messages that spell a special token, unless --special-tokens accepts it."""
    if tokenizer.special_tokens:
        return
    texts = json.dumps([conversation.messages, conversation.tools, dict(conversation.values)])
    for token in tokenizer.special_texts:
        if json.dumps(token)[1:-1] in texts:  # also in names of fields, which a template may write
            raise InputError(
                f"a message spells the special token {token}; --special-tokens accepts it"
            )


def turn_end_ids(sample: Rendered, tokenizer: Tokenizer) -> set[int]:
    """Ids of the added tokens that end trained turns; blank space may follow them."""
    ids: set[int] = set()
    for end in sample.turn_ends:
        turn = sample.text[:end].rstrip()
        name = max(filter(turn.endswith, tokenizer.added_ids), key=len, default=None)
        if name and any(first < len(turn) <= last for first, last in sample.spans):
            ids.add(tokenizer.added_ids[name])
    return ids


def chat_sample(
    ids: Sequence[int], spans: Sequence[Span], task: str, tokenizer: Tokenizer
) -> TokenizedSample:
    """Cuts the tokens of a conversation into input and target."""
    merged: list[Span] = []
    for start, end in spans:
        if start == end:  # text of which the tokenizer makes no token
            continue
        if merged and start < merged[-1][1]:  # one token belongs to both spans
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    if not merged:
        raise InputError("no token of the assistant, so there is nothing to learn")
    cut, end = merged[-1]
    if tokenizer.start_id is None and cut == 0 and end == 1:
        raise InputError("the assistant's only token is the first, which nothing predicts")
    inputs, targets = list(ids[:cut]), ids[cut:]
    if tokenizer.input_end_id is not None:
        inputs.append(tokenizer.input_end_id)
        merged[-1] = (cut + 1, end + 1)
    return TokenizedSample(inputs, targets, task, merged)


def render_pair(chats: Sequence[Conversation], template: ChatTemplate) -> list[Rendered]:
    """Texts of the conversations of a pair, whose answers begin after the generation prompt.

    An answer is all that follows the prompt, including messages that the assistant did not write.
    """
    n_before = n_shared(*(chat.messages for chat in chats))
    texts = []
    for conversation in chats:
        chat = template.apply(conversation)
        text, start = chat.whole().text, start_of_turn(chat, n_before)
        if text[:start] != chat.until(n_before + 1).text[:start]:
            raise InputError(
                f"{template.name} writes messages differently when more follow, so that an answer "
                "of several messages does not continue its prompt; keep one message of each "
                "answer, or name another template: preprocess --template FILE"
            )
        if start >= len(text):
            raise InputError(f"{template.name} renders no answer text")
        texts.append(Rendered(text, [(start, len(text))], (len(text),)))
    one, other = (text.text[: text.spans[0][0]] for text in texts)
    if one != other:
        raise InputError(f"{template.name} writes the prompt differently before each answer")
    return texts


def pair_sample(
    chosen: tuple[Sequence[int], int],
    rejected: tuple[Sequence[int], int],
    task: str,
    tokenizer: Tokenizer,
) -> TokenizedSample:
    """Sample of a preference pair, from both texts' tokens and the index where each answer begins.

    The prompt is what both texts begin with, at most up to the first token of an answer.
    """
    (one, cut), (other, other_cut) = chosen, rejected
    n = n_shared(one[:cut], other[:other_cut])
    sample = TokenizedSample(one[:n], one[n:], task, rejected=other[n:])
    if not sample.targets or not sample.rejected or list(one) == list(other):
        raise InputError("the tokens of both answers are the same, or there are none")
    if tokenizer.start_id is None and not sample.inputs:
        raise InputError(
            "the prompt has no token, and there is no start token before the answers; give the "
            "record a prompt, or name a token: --start TOKEN"
        )
    return sample


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a valid sample."""

    path: Path
    number: int  # number of the line in the file, from 1
    reason: str
    is_format: bool = False  # whether the file has another format; the reason names the remedy

    def describe(self) -> str:
        """File, line number and reason, as a message."""
        return f"{self.path}:{self.number}: {self.reason}"


@dataclass(frozen=True, slots=True)
class TokenizedLines:
    """The result of tokenizing some lines."""

    block: TokenBlock
    n_bytes: int  # size in bytes of all lines in the file
    n_records: int  # number of good lines; a conversation may make several samples
    bad: tuple[BadLine, ...]


def tokenize_lines(lines: Lines, recipe: Recipe) -> TokenizedLines:
    """Makes samples of every line that is not blank.

    Targets of pairs end with the end-of-sequence token.
    """
    samples: list[TokenizedSample] = []
    end_ids: set[int] = set()
    bad: list[BadLine] = []
    n_records = 0
    is_first = lines.first == 1
    for number, content in enumerate(lines.lines, start=lines.first):
        line = content.removeprefix(BYTE_ORDER_MARK) if is_first else content
        if not line.strip():
            continue
        try:
            if is_first:
                is_first = False
                check_first_line(lines.path, line, recipe.format, recipe.fields)
            made, ends = _samples(_parse(line), recipe)
        except InputError as error:
            bad.append(BadLine(lines.path, number, str(error), isinstance(error, FormatError)))
        except RecursionError:
            bad.append(BadLine(lines.path, number, "values are nested too deeply"))
        else:
            samples += made
            end_ids |= ends
            n_records += 1
    block = TokenBlock.from_samples(
        samples, recipe.tokenizer.vocab_size, end_ids, has_pairs=recipe.format.has_pairs
    )
    return TokenizedLines(block, lines.n_bytes, n_records, tuple(bad))


def _samples(record: dict[str, Any], recipe: Recipe) -> tuple[list[TokenizedSample], set[int]]:
    """Samples of a record, and the ids of the tokens that end their trained turns."""
    content, task = sample_of(record, recipe.format, recipe.fields), task_of(record)
    tokenizer, template = recipe.tokenizer, recipe.template
    utf8_of(task)
    if template is None:
        if not isinstance(content, Texts):
            raise InputError("messages need a chat template: preprocess --template FILE")
        if recipe.format is not RecordFormat.TEXT:
            check_no_context(record)
        answers = [encode_answer(content.prompt, each, tokenizer) for each in content.answers]
        if recipe.format.has_pairs:
            chosen, rejected = answers
            return [pair_sample(chosen, rejected, task, tokenizer)], set()
        [(ids, start)] = answers
        if tokenizer.start_id is None and len(ids) == 1:
            raise InputError("its only token is the first, which nothing predicts")
        return [TokenizedSample(ids[:start], ids[start:], task)], set()
    chats = content.as_conversations() if isinstance(content, Texts) else content
    for chat in chats:
        check_special_tokens(chat, tokenizer)
    if recipe.format.has_pairs:
        rendered = render_pair(chats, template)
    else:
        [chat] = chats
        rendered = turn_samples(chat, template.apply(chat), recipe.turns)
    end_ids = {token_id for each in rendered for token_id in turn_end_ids(each, tokenizer)}
    marked = [tokenizer.encode(each.text, each.spans) for each in rendered]
    if recipe.format.has_pairs:
        chosen, rejected = ((ids, start) for ids, [(start, _)] in marked)
        return [pair_sample(chosen, rejected, task, tokenizer)], end_ids
    return [chat_sample(ids, spans, task, tokenizer) for ids, spans in marked], end_ids


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"longer than {MAX_LINE_BYTES:,} bytes")
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(record, dict):
        raise InputError(f"not a JSON object but {kind_of(record)}")
    return record


MAX_TMPDIR_BYTES = 75
"""Longest TMPDIR, in bytes: a socket's path in it then has 107 bytes, the maximum on Linux."""

TokenizePool = Callable[[Iterable[Lines]], Iterator[TokenizedLines]]
"""Function that tokenizes blocks of lines, in order, and reads only a few blocks ahead."""


@contextmanager
def open_pool(recipe: Recipe, n_workers: int) -> Iterator[TokenizePool]:
    """Starts the worker processes, and ends them when the block ends, even by an exception.

    With one worker, this process does the work itself: on one core two processes would only
    compete.
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

    def tokenize(blocks: Iterable[Lines]) -> Iterator[TokenizedLines]:
        try:
            yield from _by_workers(blocks, executor, most_waiting=2 * n_workers)
        except BrokenProcessPool:
            # The executor sends the others SIGTERM, which they block, and waits for their end.
            for worker in active_children():
                if worker not in others:
                    worker.kill()
            raise RunError(
                "a worker process died, perhaps for lack of memory; try fewer workers: --workers N"
            ) from None

    try:
        with _undisturbed(), _socket_in_short_folder():
            executor.submit(int)  # starts a worker, and the process that all are forked from
        yield tokenize
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
    """Blocks signals: if one came before a process is registered, the exit would wait forever.

    Processes started within keep them blocked. Ctrl-C reaches every process of the
    terminal, but only the first one handles it and ends the others.
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
