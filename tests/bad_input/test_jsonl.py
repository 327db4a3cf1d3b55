import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest
from tests.bad_input.changes import Change, be, be_a_folder, be_a_link, be_missing
from tests.bad_input.good import LINE, PREPROCESS
from tests.bad_input.worker import Worker, assert_refused

GOOD = LINE.encode()
# The second line of in.jsonl, and what the message has to say of it.
LINES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"nonsense", "not JSON"),
    "two objects": (
        b'{"inputs": "a", "targets": "b"} {"inputs": "a", "targets": "b"}',
        "Extra data",
    ),
    "a list": (b'["a", "b"]', "not a JSON object but a list"),
    "no inputs": (b'{"targets": "b"}', "'inputs' is missing .found 'targets'"),
    "fields of other names": (
        b'{"question": "a", "answer": "b"}',
        "name the fields of the input and the target: --inputs-field NAME --targets-field NAME; "
        "preference pairs have 'chosen' and",
    ),
    "a task of a number": (b'{"inputs": "a", "targets": "b", "task": 7}', "'task' is a number"),
    "a zero character in a task": (
        b'{"inputs": "a", "targets": "b", "task": "a\\u0000"}',
        "'task' holds a zero character",
    ),
    "half of a surrogate pair": (
        b'{"inputs": "\\ud800", "targets": "b"}',
        r"a text holds half of a surrogate pair, .ud800;",
    ),
    "a surrogate in a key": (b'{"\\ud800": "a"}', r"'inputs' is missing .found '.ud800'"),
    "many keys": (
        b"{" + b",".join(b'"k%d": 1' % i for i in range(5000)) + b"}",
        r"'inputs' is missing .found 'k0', .* more",
    ),
    "Latin-1": (b'{"inputs": "caf\xe9", "targets": "b"}', "not UTF-8 at byte 16"),
    "compressed": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "not UTF-8"),
    "a deep list": (b"[" * 200_000, "not JSON"),
    "a line beyond the limit": (
        b'{"inputs": "' + b"a" * (17 << 20) + b'", "targets": "b"}',
        "longer than 16,777,216 bytes",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_bad_line_is_named(worker: Worker, folder: Path, name: str) -> None:
    line, words = LINES[name]
    (folder / "in.jsonl").write_bytes(GOOD + line + b"\n" + GOOD)
    assert_refused(worker, folder, PREPROCESS, rf"^dynapipe-hpc: in\.jsonl:2: .*({words})")


FILES: dict[str, tuple[Change, str]] = {
    "empty": (be(""), "in.jsonl: no sample to write"),
    "missing": (be_missing, "in.jsonl: cannot be read: No such file"),
    "a folder": (be_a_folder, "in.jsonl: .*(is a folder|Is a directory)"),
    "a link to nothing": (be_a_link("nothing"), "in.jsonl: cannot be read: No such file"),
    "a mark in between": (be(GOOD + b"\xef\xbb\xbf" + GOOD), "in.jsonl:2: not JSON"),
    "UTF-16": (be(LINE.encode("utf-16")), "in.jsonl:1: the file is UTF-16"),
    "an indented object": (
        be('{\n  "inputs": "a",\n  "targets": "b"\n}\n'),
        "in.jsonl:1: the file begins a JSON object on several",
    ),
    "an end in the middle": (be((3 * GOOD)[:-20]), "in.jsonl:3: not JSON"),
    "HDF5": (
        lambda path: path.write_bytes((path.parent / "data.h5").read_bytes()),
        "in.jsonl:1: the file is an HDF5 file",
    ),
    "the disk": (be_a_link("/dev/null"), "in.jsonl: no sample to write"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_named(worker: Worker, folder: Path, name: str) -> None:
    change, words = FILES[name]
    change(folder / "in.jsonl")
    assert_refused(worker, folder, PREPROCESS, words)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("in.csv", b"inputs,targets\na,b\n", r"in.csv:1: the file is a table .*DictReader"),
        ("in.tsv", b"inputs\ttargets\na\tb\n", r"in.tsv:1: the file is a table .*delimiter"),
        (
            "in.csv.gz",
            gzip.compress(b"inputs,targets\n", mtime=0),
            r"in.csv.gz:1: the file is a table",
        ),
        ("in.txt", b"Once upon a time.\n", r"in.txt:1: the file is text; .*jq -Rc"),
        ("in.txt", b'{"inputs": "a', "in.txt:1: not JSON"),
        ("in.txt", bz2.compress(GOOD), "is compressed with bzip2; unpack it first(?!.*skip-bad)"),
        ("in.txt", lzma.compress(GOOD), "is compressed with xz; unpack it first(?!.*skip-bad)"),
    ],
)
def test_what_is_no_json_is_named_with_the_way_to_convert_it(
    worker: Worker, folder: Path, name: str, content: bytes, words: str
) -> None:
    (folder / name).write_bytes(content)
    assert_refused(worker, folder, ("preprocess", name, "out.h5", "--workers", "1"), words)


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.JSON", "a.txt", "a.csv", "a.parquet"])
def test_an_output_with_the_name_of_a_source_is_refused(
    worker: Worker, folder: Path, name: str
) -> None:
    arguments = ("preprocess", "in.jsonl", name, "--workers", "1")
    assert_refused(worker, folder, arguments, f"{name}: is the output, a dataset, but .* such as")


@pytest.mark.parametrize("line", [b'{"\\ud800": 1}', b'{"\\u001b[2J": 1}', b"[" * 200_000])
def test_what_is_left_out_is_shown_as_text(worker: Worker, folder: Path, line: bytes) -> None:
    (folder / "in.jsonl").write_bytes(GOOD + line + b"\n")
    ended = worker.call(folder, (*PREPROCESS, "--skip-bad"))
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert "skipped 1 bad lines, the first: in.jsonl:2: " in ended.stdout
    assert ended.stdout.replace("\n", "").isprintable()


def test_the_name_of_a_file_need_not_be_text(worker: Worker, folder: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    (folder / "in.jsonl").rename(folder / name)
    written = worker.call(folder, ("preprocess", name, "out.h5", "--workers", "1"))
    assert (written.exit_code, written.stderr) == (0, "")
    shown = worker.call(folder, ("inspect", "out.h5"))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "sources    caf" in shown.stdout
