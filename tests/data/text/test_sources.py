"""Sources of every kind and records of every shape: the same samples as of plain pairs."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.dataset.dataset_file import verify_dataset
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess, total_bytes
from dynapipe_hpc.data.text.recipe import Recipe, format_of_sources
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, PairFields
from dynapipe_hpc.data.text.tokenizers import Tokenizer

Record = dict[str, Any]
ONE = PreprocessOptions(n_workers=1)
PAIRS: list[Record] = [
    {"inputs": f"q{i} é", "targets": "a" * (i % 5 + 1), "task": "ab"[i % 2]} for i in range(4000)
]


def as_text(records: Sequence[Record]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def in_two_streams(compress: Callable[[bytes], bytes], text: bytes) -> bytes:
    """As tools write that append to compressed files."""
    half = len(text) // 2
    return compress(text[:half]) + compress(text[half:])


def as_zstd(records: Sequence[Record]) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard: make reference")
    return in_two_streams(zstandard.ZstdCompressor().compress, as_text(records))


def as_pzstd(records: Sequence[Record]) -> bytes:
    """Each frame comes after one that says its size, which is skipped."""
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard: make reference")

    def with_size(text: bytes) -> bytes:
        packed: bytes = zstandard.ZstdCompressor().compress(text)
        sizes = (4).to_bytes(4, "little") + len(packed).to_bytes(4, "little")
        return b"\x50\x2a\x4d\x18" + sizes + packed

    return in_two_streams(with_size, as_text(records))


def as_long_zstd(records: Sequence[Record]) -> bytes:
    """As of `zstd --long=28`: text must be found again that is 256 MiB back."""
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard: make reference")
    wide = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    packing = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    packed: bytes = packing.compress(as_text(records)) + packing.flush()
    return packed


def as_parquet(records: Sequence[Record]) -> bytes:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: make reference")
    arrow, file = pytest.importorskip("pyarrow"), io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(list(records)), file, row_group_size=999)
    return file.getvalue()


def as_arrow(records: Sequence[Record], kind: str) -> bytes:
    arrow, file = (
        pytest.importorskip("pyarrow", reason="needs pyarrow: make reference"),
        io.BytesIO(),
    )
    table = arrow.Table.from_pylist(list(records))
    with getattr(arrow.ipc, kind)(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=999)
    return file.getvalue()


KINDS: dict[str, Callable[[Sequence[Record]], bytes]] = {
    "gzip": lambda records: in_two_streams(gzip.compress, as_text(records)),
    "gzip on tape": lambda records: gzip.compress(as_text(records)) + b"\0" * 40_000,
    "zstd": as_zstd,
    "pzstd": as_pzstd,
    "zstd with a long window": as_long_zstd,
    "with blank lines": lambda records: b"\n" + as_text(records).replace(b"\n", b"\r\n \t\n"),
    "with a byte-order mark": lambda records: b"\xef\xbb\xbf" + as_text(records),
    "with a byte-order mark, packed": lambda records: gzip.compress(
        b"\xef\xbb\xbf\n" + as_text(records)
    ),
    "array": lambda records: json.dumps(records).encode(),
    "array, indented, packed": lambda records: gzip.compress(
        b"\xef\xbb\xbf\r\n" + json.dumps(records, indent=4, ensure_ascii=False).encode()
    ),
    "parquet": as_parquet,
    "arrow file": lambda records: as_arrow(records, "new_file"),
    "arrow stream": lambda records: as_arrow(records, "new_stream"),
}


def written(folder: Path, records: Sequence[Record], name: str = "plain.jsonl") -> Path:
    (folder / name).write_bytes(as_text(records))
    return folder / name


def hash_of(output: Path, *sources: Path, recipe: Recipe | None = None) -> str:
    preprocess(sources, output, recipe or Recipe(Tokenizer()), ONE)
    return verify_dataset(output)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_of_any_kind_gives_the_same_dataset(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(KINDS[kind](PAIRS))
    expected = hash_of(tmp_path / "plain.h5", written(tmp_path, PAIRS))
    assert hash_of(tmp_path / "x.h5", source) == expected
    assert format_of_sources([source], PAIR_FIELDS) is RecordFormat.PAIRS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'[{"text": "a"}, {"text": "b"]', "x.json: begins a JSON array, .* delimiter: line 1 col"),
        (b'[{"text": "a"} {"text": "b"}]', "x.json: begins a JSON array, .* delimiter: line 1 col"),
        (b'[{"text": "a"}', "x.json: begins a JSON array, .*; correct it, or write a record per"),
        (b'[{"text": "a"}]\n[{"text": "b"}]', "x.json: begins .*Extra data: line 2 column 1"),
        (b'[{"text": "\xff"}]', "x.json: not UTF-8"),
        (b'[{"text": "a"}, "b"]', "x.json:2: not a JSON object but a string"),
        (b"[" + 100_000 * b"[", "x.json: begins a JSON array, .*recursion"),
        (b"[]", "x.json: no sample to write"),
    ],
)
def test_what_is_wrong_in_an_array_is_named(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "x.json").write_bytes(text)
    recipe = Recipe(Tokenizer(), RecordFormat.TEXT)
    with pytest.raises(InputError, match=words):
        preprocess([tmp_path / "x.json"], tmp_path / "x.h5", recipe, ONE)


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl", "train.csv"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:2\nsize 1\n"
    )
    with pytest.raises(
        InputError, match=rf"{name}:1: the file is only a pointer of Git LFS.*lfs pull$"
    ):
        preprocess([tmp_path / name], tmp_path / "x.h5", Recipe(Tokenizer()), ONE)


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_gives_the_same_dataset(tmp_path: Path, packed: bool) -> None:
    text = as_text(PAIRS)
    called = "import sys; from dynapipe_hpc.cli.main import main; sys.exit(main(sys.argv[1:]))"
    made = subprocess.run(
        [sys.executable, "-c", called, "preprocess", "-", str(tmp_path / "x.h5"), "--workers", "1"],
        input=gzip.compress(text) if packed else text,
        capture_output=True,
        check=True,
    )
    assert b"4,000 samples" in made.stdout
    expected = hash_of(tmp_path / "plain.h5", written(tmp_path, PAIRS))
    assert verify_dataset(tmp_path / "x.h5") == expected


SHAPES: dict[RecordFormat, tuple[list[Record], list[Record]]] = {
    RecordFormat.ALPACA: (
        [
            {"instruction": "Add.", "input": "1 2", "output": "3", "text": "Below is"},
            {"instruction": "Hi", "input": "", "output": "Hello"},
            {"instruction": "Hi", "output": "Hello", "task": "t"},
            {"instruction": "Hi", "input": None, "output": "Hello"},
            {"instruction": "Add.", "context": "1 2", "response": "3", "category": "sum"},
            {"instruction": "Add.", "input": "1", "context": "2", "output": "3"},
        ],
        [
            {"inputs": "Add.\n\n1 2", "targets": "3"},
            {"inputs": "Hi", "targets": "Hello"},
            {"inputs": "Hi", "targets": "Hello", "task": "t"},
            {"inputs": "Hi", "targets": "Hello"},
            {"inputs": "Add.\n\n1 2", "targets": "3"},
            {"inputs": "Add.\n\n1\n\n2", "targets": "3"},
        ],
    ),
    RecordFormat.TEXT: (
        [{"text": "One."}, {"text": "Two", "meta": {"from": "web"}}],
        [{"inputs": "", "targets": "One."}, {"inputs": "", "targets": "Two"}],
    ),
}


@pytest.mark.parametrize("record_format", SHAPES)
def test_records_of_other_shapes_are_pairs_too(tmp_path: Path, record_format: RecordFormat) -> None:
    records, pairs = SHAPES[record_format]
    source = written(tmp_path, records, "other.jsonl")
    assert format_of_sources([source], PAIR_FIELDS) is record_format
    recipe = Recipe(Tokenizer(), record_format)
    expected = hash_of(tmp_path / "plain.h5", written(tmp_path, pairs))
    assert hash_of(tmp_path / "x.h5", source, recipe=recipe) == expected


@pytest.mark.parametrize(
    ("names", "is_known"), [(("prompt", "completion"), True), (("ask", "say"), False)]
)
def test_fields_of_pairs_have_any_names(
    tmp_path: Path, names: tuple[str, str], is_known: bool
) -> None:
    inputs, targets = names
    renamed = [{inputs: r["inputs"], targets: r["targets"], "task": r["task"]} for r in PAIRS]
    source = written(tmp_path, renamed, "renamed.jsonl")
    expected = hash_of(tmp_path / "plain.h5", written(tmp_path, PAIRS))
    if is_known:
        assert hash_of(tmp_path / "x.h5", source) == expected
    else:
        with pytest.raises(InputError, match=r"renamed.jsonl:1: .*--inputs-field NAME --targets"):
            hash_of(tmp_path / "x.h5", source)
    recipe = Recipe(Tokenizer(), fields=PairFields(*names))
    assert hash_of(tmp_path / "y.h5", source, recipe=recipe) == expected


def test_sources_of_several_formats_are_refused(tmp_path: Path) -> None:
    sources = [
        written(tmp_path, PAIRS[:1], "a.jsonl"),
        written(tmp_path, [{"text": "One."}], "b.jsonl"),
    ]
    with pytest.raises(
        InputError, match=r"a.jsonl holds pairs, .*b.jsonl holds text; make a dataset"
    ):
        format_of_sources(sources, PAIR_FIELDS)
    with pytest.raises(InputError, match=r"b.jsonl:1: the file holds plain text .*--format text"):
        hash_of(tmp_path / "x.h5", *sources)


DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "gzip": (
        lambda: gzip.compress(as_text(PAIRS))[:2000],
        "cannot be unpacked: Compressed file ended before .*; copy or pack it again",
    ),
    "gzip text": (lambda: gzip.compress(as_text(PAIRS))[:-8] + b"x" * 8, "cannot be unpacked: CRC"),
    "gzip bits": (lambda: gzip.compress(b"x")[:10] + b"x" * 99, "cannot be unpacked: Error -3"),
    "after gzip": (lambda: gzip.compress(as_text(PAIRS)) + b"x", "cannot be unpacked: Not a gzip"),
    "zstd": (lambda: as_zstd(PAIRS)[:-40], "cannot be unpacked: the file ends within a frame"),
    "zstd text": (
        lambda: as_zstd(PAIRS)[:4] + b"x" * 99,
        "cannot be unpacked: zstd .*; copy",
    ),
    "parquet": (lambda: as_parquet(PAIRS)[:-9], "a damaged table: "),
    "arrow": (lambda: as_arrow(PAIRS, "new_file")[:2000], "a damaged table: "),
    "bytes": (lambda: as_parquet([{"inputs": b"x", "targets": "a"}]), ":1: field 'inputs' is an o"),
    "a field": (lambda: as_parquet([{"inputs": 1, "targets": "a"}]), ":1: field 'inputs' is a num"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_source_is_named(tmp_path: Path, damage: str) -> None:
    content, message = DAMAGED[damage]
    (tmp_path / "source").write_bytes(content())
    with pytest.raises(InputError, match=f"source:? ?{message}"):
        hash_of(tmp_path / "x.h5", tmp_path / "source")
    assert not (tmp_path / "x.h5").exists()


def test_columns_that_nobody_reads_may_hold_anything(tmp_path: Path) -> None:
    """Tables of conversations come with times and hashes."""
    more = {"at": datetime(2026, 1, 1), "hash": b"\0\xff", "cost": Decimal("0.5")}
    (tmp_path / "source").write_bytes(as_parquet([{**record, **more} for record in PAIRS]))
    expected = hash_of(tmp_path / "plain.h5", written(tmp_path, PAIRS))
    assert hash_of(tmp_path / "x.h5", tmp_path / "source") == expected


def test_a_package_that_a_source_needs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "source").write_bytes(b"PAR1....")
    assert main(["preprocess", str(tmp_path / "source"), str(tmp_path / "x.h5")]) == 2
    assert "pip install 'dynapipe-hpc[parquet]'" in capsys.readouterr().err


def test_the_size_of_text_is_known_of_plain_files_only(tmp_path: Path) -> None:
    plain, packed = written(tmp_path, PAIRS[:9]), tmp_path / "b.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    array = tmp_path / "c.json"
    array.write_text(f"\n[{plain.read_text().splitlines()[0]}]")
    os.mkfifo(tmp_path / "pipe")
    assert total_bytes([plain, plain]) == 2 * plain.stat().st_size
    for unknown in (packed, array, tmp_path / "pipe", Path("-")):
        assert total_bytes([plain, unknown]) is None
    with pytest.raises(InputError, match=r"c.jsonl: cannot be read: No such file"):
        total_bytes([Path("-"), tmp_path / "c.jsonl"])
