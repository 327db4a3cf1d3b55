"""Parts of text files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.data.text.text_part import TextPart, cut, read_blocks


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


def test_blocks_count_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"x" * 99_999 + b"\n" + b"y\n" * 99_999)
    blocks = list(read_blocks(TextPart(path)))
    firsts = [block.first for block in blocks]
    assert firsts == [1 + sum(len(b.lines) for b in blocks[:k]) for k in range(len(blocks))]
    assert sum(block.n_bytes for block in blocks) == path.stat().st_size
    assert len(blocks) > 2
