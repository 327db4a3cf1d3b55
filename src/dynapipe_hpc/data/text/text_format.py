"""Well-known file formats other than JSONL samples, recognized by the first line."""

import json

from dynapipe_hpc.data.errors import InputError

_TEXT = "convert it to JSON lines with the strings 'inputs' and 'targets'"
_UNPACK = "unpack it first"
_SIGNATURES = {
    b"\x1f\x8b": f"is compressed with gzip; {_UNPACK}",
    b"\x28\xb5\x2f\xfd": f"is compressed with zstd; {_UNPACK}",
    b"BZh": f"is compressed with bzip2; {_UNPACK}",
    b"\xfd7zXZ": f"is compressed with xz; {_UNPACK}",
    b"PK\x03\x04": f"is a zip archive; {_UNPACK}",
    b"PAR1": f"is a Parquet file; {_TEXT}",
    b"\x89HDF": f"is an HDF5 file; {_TEXT}",
    b"\xef\xbb\xbf": "begins with a byte-order mark (BOM); write it as UTF-8 without one",
    b"\xff\xfe": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
    b"\xfe\xff": "is UTF-16 by its byte-order mark; write it as UTF-8 without one",
    b"[": f"begins a JSON array; {_TEXT}, one object per line",
}
_RECORDS = {
    "messages": "chat messages ('messages')",
    "conversations": "chat messages ('conversations')",
    "instruction": "Alpaca's fields ('instruction', 'input', 'output')",
    "prompt": "prompts and completions ('prompt')",
    "text": "plain text ('text')",
}


class FormatError(InputError):
    """A file is of another format; the message names the format and the remedy."""


def check_first_line(line: bytes) -> None:
    """Recognizes well-known formats by the first line of a file.

    Raises:
        FormatError: The file is of one of them.
    """
    for signature, what in _SIGNATURES.items():
        if line.startswith(signature):
            raise FormatError(f"the file {what}")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return
    if not isinstance(record, dict) or "inputs" in record or "targets" in record:
        return
    for field, what in _RECORDS.items():
        if field in record:
            raise FormatError(f"the file holds {what}; {_TEXT}")
