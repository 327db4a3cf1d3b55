"""From JSONL files to a dataset."""

import json
import os
from pathlib import Path

import pytest

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, PreprocessTotals, preprocess
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenizers import ByteTokenizer

BYTES = Recipe(ByteTokenizer())
ONE = PreprocessOptions(n_workers=1)


def write_lines(path: Path, n_lines: int, task: str = "t") -> Path:
    records = (
        {"inputs": f"{path.stem} {i}", "targets": "x" * (i % 7 + 1), "task": task}
        for i in range(n_lines)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def texts(path: Path) -> list[str]:
    with DatasetFile(path) as dataset:
        return [
            bytes(dataset.read(i, int(dataset.input_lengths[i]), 0)[0].tolist()).decode()
            for i in range(dataset.n_samples)
        ]


def test_samples_keep_the_order_of_the_lines(tmp_path: Path) -> None:
    sources = [
        write_lines(tmp_path / "a.jsonl", 5000, "a"),
        write_lines(tmp_path / "b.jsonl", 9, "b"),
    ]
    seen: list[int] = []
    totals = preprocess(
        sources,
        tmp_path / "x.h5",
        BYTES,
        PreprocessOptions(n_workers=2),
        on_progress=lambda done: seen.append(done.n_bytes),
    )
    assert texts(tmp_path / "x.h5") == [
        *(f"a {i}" for i in range(5000)),
        *(f"b {i}" for i in range(9)),
    ]
    with DatasetFile(tmp_path / "x.h5") as dataset:
        assert dataset.task_names == ("a", "b")
        assert dataset.header.sources == tuple(map(str, sources))
        lengths = dataset.input_lengths.sum() + dataset.target_lengths.sum()
    assert totals.n_samples == 5009
    assert totals.n_tokens == lengths
    assert totals.n_bytes == seen[-1] == sum(source.stat().st_size for source in sources)
    assert len(seen) > 2


@pytest.mark.parametrize(("content", "reason"), [("", ""), ("{}\n", r" \(.*a\.jsonl:1: field")])
def test_a_dataset_without_samples_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    options = PreprocessOptions(skip_bad=True, n_workers=1)
    with pytest.raises(InputError, match=rf"a\.jsonl: no sample to write{reason}"):
        preprocess([tmp_path / "a.jsonl"], tmp_path / "x.h5", BYTES, options)
    assert not (tmp_path / "x.h5").exists()


def interrupt(_: PreprocessTotals) -> None:
    raise KeyboardInterrupt


def test_an_interruption_leaves_no_file(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", 20_000)
    with pytest.raises(KeyboardInterrupt):
        preprocess([source], tmp_path / "x.h5", BYTES, ONE, on_progress=interrupt)
    assert list(tmp_path.iterdir()) == [source]


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
