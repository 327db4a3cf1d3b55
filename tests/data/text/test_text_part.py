"""Parts of text files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.data.text.open_lines import TextPart, cut, read_blocks


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
