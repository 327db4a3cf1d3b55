"""Well-known file formats other than JSONL samples, recognized by the first line."""

import json
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import GIT_LFS, IS_POINTER
from dynapipe_hpc.data.text.record_format import RecordFormat
from dynapipe_hpc.data.text.records import PairFields, formats_of_record

_TEXT = "convert it to JSON lines"
_READS = "python3 -c 'import csv, json, sys; [print(json.dumps(r)) for r in"
_TABLES = {
    ".csv": f"{_READS} csv.DictReader(sys.stdin)]'",
    ".tsv": f'{_READS} csv.DictReader(sys.stdin, delimiter="\\t")]\'',
}
"""Programs that turn a table whose first row names its columns into JSON lines."""
_PACKED = (".gz", ".zst")
_UNPACK = "unpack it first"
_SIGNATURES = {
    GIT_LFS: IS_POINTER,
    b"BZh": f"is compressed with bzip2; {_UNPACK}",
    b"\xfd7zXZ": f"is compressed with xz; {_UNPACK}",
    b"PK\x03\x04": f"is a zip archive; {_UNPACK}",
    b"\x89HDF": f"is an HDF5 file; {_TEXT}",
    b"\xff\xfe": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
    b"\xfe\xff": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
}
_JSON = {
    b"[": f"begins a JSON array; {_TEXT}: jq -c '.[]' FILE.json > FILE.jsonl",
    b"{": f"begins a JSON object on several lines; {_TEXT}: jq -c . FILE.json > FILE.jsonl",
}
"""Files of JSON by their first line, or its start."""
_NAMES = {
    RecordFormat.PAIRS: "inputs and targets",
    RecordFormat.ALPACA: "Alpaca's fields ('instruction', 'output')",
    RecordFormat.MESSAGES: "conversations ('messages')",
    RecordFormat.TEXT: "plain text ('text')",
    RecordFormat.PREFERENCES: "preference pairs of texts ('chosen', 'rejected')",
    RecordFormat.CHAT_PREFERENCES: "preference pairs of messages ('chosen', 'rejected')",
}


class FormatError(InputError):
    """A file is of another format; the message names the format and the remedy."""


def check_first_line(path: Path, line: bytes, expected: RecordFormat, fields: PairFields) -> None:
    """Recognizes files of another format than expected by their first line that is not blank.

    Args:
        path: The file, whose name tells tables and texts apart.
        line: The line.
        expected: Shape of the records.
        fields: Names of the fields of pairs.

    Raises:
        FormatError: The file is of another format.
    """
    for signature, what in _SIGNATURES.items():
        if line.startswith(signature):
            raise FormatError(f"the file {what}")
    text = line.strip()
    if text.startswith(b"[") or text == b"{":
        raise FormatError(f"the file {_JSON[text[:1]]}")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        _check_name(path, text)
        return
    formats = formats_of_record(record, fields)
    if formats and expected not in formats:
        raise FormatError(
            f"the file holds {_NAMES[formats[0]]}, not {_NAMES[expected]}; say so: --format "
            f"{formats[0]}"
        )


def _check_name(path: Path, text: bytes) -> None:
    """Refuses a table or a plain text, recognized by the name of the file."""
    if text.startswith(b"{"):
        return
    suffix = next((each for each in reversed(path.suffixes) if each.lower() not in _PACKED), "")
    if (program := _TABLES.get(suffix.lower())) is not None:
        raise FormatError(
            f"the file is a table ({suffix}); {_TEXT}: {program} < FILE{suffix} > FILE.jsonl; "
            "its columns may have other names: --inputs-field, --targets-field"
        )
    if suffix.lower() == ".txt":
        raise FormatError(
            f"the file is text; {_TEXT}, of which each line is a document: jq -Rc '{{text: .}}' "
            "FILE.txt > FILE.jsonl; or, if all of it is one: jq -Rsc '{text: .}'"
        )
