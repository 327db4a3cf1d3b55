"""Description of a dataset, as `inspect` prints it."""

from pathlib import Path

from tests.examples.tokenized import Tokenized, write_samples

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.describe_dataset import describe_dataset


def test_counts_percentiles_and_histogram_are_shown(tmp_path: Path) -> None:
    samples: list[Tokenized] = [
        *[([1] * n, [2, 9], "short") for n in range(1, 101)],
        *[([1] * 1000, [9], "long") for _ in range(2)],
    ]
    path = write_samples(tmp_path / "x.h5", samples)
    with DatasetFile(path) as dataset:
        created = dataset.header.created
    assert describe_dataset(path).splitlines() == [
        f"{path}: dataset of {created}",
        "samples    102 of 2 tasks",
        "tokens     7,252 (7,050 of inputs, 202 of targets)",
        "tokenizer  digits, sha256 abababababab",
        "vocabulary 10 tokens, end of sequence 9, start 9",
        "sources    a.jsonl, b.jsonl",
        "",
        "task           samples          tokens      p50      p90      p99  longest",
        "all tasks          102           7,252       53       94    1,001    1,001",
        "long                 2           2,002    1,001    1,001    1,001    1,001",
        "short              100           5,250       52       92      101      102",
        "",
        "           tokens      samples",
        "       2-3                   1 #",
        "       4-7                   4 #####",
        "       8-15                  8 ##########",
        "      16-31                 16 #####################",
        "      32-63                 32 #########################################",
        "      64-127                39 ##################################################",
        "     128-255                 0",
        "     256-511                 0",
        "     512-1,023               2 ###",
    ]
