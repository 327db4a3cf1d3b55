"""Lines become samples, in parts and by a pool of processes."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.tokenized import sides_of
from tests.jobs.command_line import run_command, run_python

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.text.chat_template import ChatTemplate
from dynapipe_hpc.data.text.chat_turns import Turns
from dynapipe_hpc.data.text.open_lines import Lines, TextPart, cut, read_blocks
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PairFields
from dynapipe_hpc.data.text.shard import MIN_PART_BYTES, Shard, lay_out_shards, share_out
from dynapipe_hpc.data.text.tokenize_lines import open_pool, tokenize_lines
from dynapipe_hpc.data.text.tokenizers import Marked, Tokenizer

GOOD = json.dumps({"inputs": "hi", "targets": "hé", "task": "greet"}, ensure_ascii=False).encode()


def lines(*content: bytes) -> Lines:
    return Lines(TextPart(Path("in.jsonl")), 41, [line + b"\n" for line in content])


@dataclass(frozen=True, slots=True)
class EndedInputs(Tokenizer):
    """As a T5's: inputs end, too."""

    input_end_id: int | None = 255


def test_inputs_end_where_the_tokenizer_says_so() -> None:
    block = tokenize_lines(lines(GOOD), Recipe(EndedInputs())).block
    assert sides_of(block) == [[[*b"hi", 255], [*"hé".encode(), 256]]]


def test_a_bad_line_is_named_and_left_out() -> None:
    bad = b'{"question": "a", "answer": "b"}'
    found = tokenize_lines(lines(GOOD, bad, GOOD), Recipe(Tokenizer()))
    assert len(found.block.tasks) == 2
    [bad_line] = found.bad
    told = bad_line.describe()
    assert told.startswith("in.jsonl:42: ")
    assert "(found 'question', 'answer'); name the fields of the input and the target: " in told
    assert found.n_bytes == 2 * len(GOOD) + len(bad) + 3


LINES = Lines(TextPart(Path("a.jsonl")), 1, [b'{"inputs": "a", "targets": "b"}\n'])


class DyingTokenizer(Tokenizer):
    """As when the system has run out of memory."""

    def encode_marked(self, *_: object, **__: object) -> list[Marked]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return str(ids)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_blocks_are_tokenized_in_their_order(n_workers: int) -> None:
    blocks = [Lines(LINES.part, 1, LINES.lines * n) for n in range(1, 12)]
    with open_pool(Recipe(Tokenizer()), n_workers) as pool:
        found = [len(tokenized.block.tasks) for tokenized in pool(blocks)]
    assert found == list(range(1, 12))


def test_no_signal_interrupts_the_start_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor may start one with every task; half a start is a worker without its data."""
    held: list[set[int]] = []
    submit = ProcessPoolExecutor.submit

    def observed(executor: ProcessPoolExecutor, *task: Any) -> Future[Any]:
        held.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        return submit(executor, *task)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", observed)
    held_before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with open_pool(Recipe(Tokenizer()), n_workers=2) as pool:
        for _ in pool([LINES] * 3):
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == held_before
    assert len(held) > 3
    assert all({signal.SIGINT, signal.SIGTERM} <= mask for mask in held)


def test_workers_that_cannot_be_started_are_reported() -> None:
    program = """
import tempfile
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_lines import open_pool
from dynapipe_hpc.data.text.tokenizers import Tokenizer, Marked

tempfile.tempdir = "/missing"
with open_pool(Recipe(Tokenizer()), n_workers=2):
    pass
"""
    ended = run_python(program)
    assert (
        "RunError: worker processes cannot be started: No such file or directory; set TMPDIR "
        in (ended.stderr)
    )


def test_a_dead_worker_is_reported() -> None:
    with (
        pytest.raises(RunError, match=r"a worker process died.*try fewer workers: --workers N"),
        open_pool(Recipe(DyingTokenizer()), n_workers=2) as pool,
    ):
        list(pool([LINES]))


def in_temporary_folder(folder: Path, source: Path, output: Path) -> CompletedProcess[str]:
    """Preprocessing with two workers where TMPDIR names a folder."""
    command = (sys.executable, "-m", "dynapipe_hpc", "preprocess", source, output)
    return run_command(*command, "--workers", "2", variables={"TMPDIR": str(folder)})


def test_a_long_path_of_temporary_files_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(LINES.lines[0])
    for name in ("x" * 110, "missing"):
        folder = tmp_path / name
        if name != "missing":
            folder.mkdir()
        ended = in_temporary_folder(folder, tmp_path / "in.jsonl", tmp_path / f"{name[:9]}.h5")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "1 samples" in ended.stdout


def lines_of(part: TextPart) -> list[bytes]:
    return [line for block in read_blocks(part) for line in block.lines]


@given(
    text=st.lists(st.sampled_from([b"a", b"bb", b"\n", b"\r"])).map(b"".join),
    part_bytes=st.integers(1, 9),
)
def test_every_line_is_in_one_part_and_keeps_its_number(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, part_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "x.jsonl"
    path.write_bytes(text)
    lines = lines_of(TextPart(path))
    assert b"".join(lines) == text
    found: list[bytes] = []
    for part in cut(path, len(text), part_bytes):
        own = lines_of(part)
        if own:
            assert part.lines_before() == len(found)
        found += own
    assert found == lines


BYTES = Recipe(Tokenizer())
ONE = PreprocessOptions(n_workers=1)


def write_lines(path: Path, n_lines: int) -> Path:
    records = (
        {"inputs": f"{path.stem} {i}", "targets": "x" * (i % 7 + 1), "task": "t"}
        for i in range(n_lines)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_what_a_killed_job_left_of_the_dataset_is_removed(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", 3)
    left = tmp_path / f".x.h5.{7:016x}.partial"
    left.touch()
    os.utime(left, (0, 0))
    preprocess([source], tmp_path / "x.h5", BYTES, ONE)
    assert set(tmp_path.iterdir()) == {source, tmp_path / "x.h5"}


def test_shards_of_the_output_are_not_left_behind(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", 3)
    (tmp_path / "x.h5.shards").mkdir()
    with pytest.raises(InputError, match=r"x\.h5\.shards: holds parts of .*mpiexec -n 1"):
        preprocess([source], tmp_path / "x.h5", BYTES, ONE)


TOKEN = (("bos_token", "<s>"),)


def sparse_file(path: Path, n_bytes: int) -> Path:
    path.touch()
    os.truncate(path, n_bytes)
    return path


def names(*sources: Path, recipe: Recipe = BYTES, skip_bad: bool = False) -> list[str]:
    return [shard.name for shard in lay_out_shards(sources, recipe, skip_bad)]


def test_small_files_are_a_shard_each_and_large_ones_several(tmp_path: Path) -> None:
    small = sparse_file(tmp_path / "a", 10)
    empty = sparse_file(tmp_path / "b", 0)
    large = sparse_file(tmp_path / "c", 2 * MIN_PART_BYTES + 1)
    shards = lay_out_shards([small, empty, large], BYTES, skip_bad=False)
    assert [shard.part.path.name for shard in shards] == ["a", "b", "c", "c", "c"]
    assert [shard.part.start for shard in shards[2:]] == [
        0,
        *(shard.part.end for shard in shards[2:-1]),
    ]
    assert sum(shard.n_bytes for shard in shards) == 10 + 2 * MIN_PART_BYTES + 1


def test_a_shard_keeps_its_name_while_nothing_changes(tmp_path: Path) -> None:
    a, b = sparse_file(tmp_path / "a", 10), sparse_file(tmp_path / "b", 10)
    assert names(a, b) == names(a, b)
    assert names(b, a) == names(a, b)[::-1]
    assert names(a, a) == names(a) * 2


def test_a_shard_of_anything_else_has_another_name(tmp_path: Path) -> None:
    a, b = sparse_file(tmp_path / "a", 10), sparse_file(tmp_path / "b", 10)
    found = names(a) + names(b)
    found += names(a, recipe=Recipe(Tokenizer(sha256="other"))) + names(a, skip_bad=True)
    found += names(a, recipe=Recipe(Tokenizer(start_id=None)))
    found += names(a, recipe=Recipe(Tokenizer(), RecordFormat.TEXT))
    found += names(a, recipe=Recipe(Tokenizer(), fields=PairFields("x")))
    found += names(a, recipe=Recipe(Tokenizer(input_end_id=1)))
    for template in (ChatTemplate("t", "a"), ChatTemplate("t", "b"), ChatTemplate("t", "b", TOKEN)):
        found += names(a, recipe=Recipe(Tokenizer(), template=template))
    template = ChatTemplate("t", "a", named=(("tool_use", "b"),))
    found += names(a, recipe=Recipe(Tokenizer(), template=template))
    found += names(a, recipe=Recipe(Tokenizer(), template=template, turns=Turns.LAST))
    os.utime(a, (1, 1))
    found += names(a)
    os.truncate(a, 11)
    os.utime(a, (1, 1))
    found += names(a)
    assert len(set(found)) == len(found)


def test_a_text_that_grows_is_noticed(tmp_path: Path) -> None:
    [shard] = lay_out_shards([sparse_file(tmp_path / "a", 10)], BYTES, skip_bad=False)
    shard.check_source()
    os.truncate(tmp_path / "a", 20)
    with pytest.raises(InputError, match="changed while it was read; start again when it is"):
        shard.check_source()


def test_a_pipe_cannot_be_shared(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(InputError, match=r"not a regular file.*without mpiexec or srun"):
        names(tmp_path / "a")


@given(sizes=st.lists(st.integers(0, 50), max_size=12), n_ranks=st.integers(1, 5))
def test_ranks_have_about_the_same_to_do(sizes: list[int], n_ranks: int) -> None:
    shards = [Shard(TextPart(Path("x")), n, (n, 0), str(i)) for i, n in enumerate(sizes)]
    shares = share_out(shards, n_ranks)
    assert len(shares) == n_ranks
    assert sorted(s.name for share in shares for s in share) == sorted(s.name for s in shards)
    loads = [sum(shard.n_bytes for shard in share) for share in shares]
    # Whoever got the last shard had the least before.
    assert max(loads) - min(loads) <= max(sizes, default=0)
