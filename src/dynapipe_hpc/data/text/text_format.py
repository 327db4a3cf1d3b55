"""Well-known file formats other than JSONL samples, recognized by the first line."""

import json

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.records import PairFields, RecordFormat, formats_of_record

_TEXT = "convert it to JSON lines"
_UNPACK = "unpack it first"
_SIGNATURES = {
    b"BZh": f"is compressed with bzip2; {_UNPACK}",
    b"\xfd7zXZ": f"is compressed with xz; {_UNPACK}",
    b"PK\x03\x04": f"is a zip archive; {_UNPACK}",
    b"\x89HDF": f"is an HDF5 file; {_TEXT}",
    b"\xff\xfe": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
    b"\xfe\xff": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
    b"[": f"begins a JSON array; {_TEXT}, one object per line",
}
_NAMES = {
    RecordFormat.PAIRS: "inputs and targets",
    RecordFormat.ALPACA: "Alpaca's fields ('instruction', 'output')",
    RecordFormat.MESSAGES: "conversations ('messages')",
    RecordFormat.TEXT: "plain text ('text')",
}


class FormatError(InputError):
    """A file is of another format; the message names the format and the remedy."""


def check_first_line(line: bytes, expected: RecordFormat, fields: PairFields) -> None:
    """Recognizes files of another format than expected by their first line.

    Raises:
        FormatError: The file is of another format.
    """
    for signature, what in _SIGNATURES.items():
        if line.startswith(signature):
            raise FormatError(f"the file {what}")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return
    found = formats_of_record(record, fields)
    if found and expected not in found:
        raise FormatError(
            f"the file holds {_NAMES[found[0]]}, not {_NAMES[expected]}; say so: --format "
            f"{found[0]}"
        )
    if not found and isinstance(record, dict) and {"prompt", "completion"} <= record.keys():
        raise FormatError(
            "the file holds prompts and completions ('prompt'); name the fields: --inputs-field "
            "prompt --targets-field completion"
        )
