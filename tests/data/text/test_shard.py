"""Which text goes into which shard, and which rank makes it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.chat_template import ChatTemplate
from dynapipe_hpc.data.text.chat_turns import Turns
from dynapipe_hpc.data.text.open_lines import TextPart
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PairFields
from dynapipe_hpc.data.text.shard import MIN_PART_BYTES, Shard, lay_out_shards, share_out
from dynapipe_hpc.data.text.tokenizers import Tokenizer

TOKEN = (("bos_token", "<s>"),)
BYTES = Recipe(Tokenizer())


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
