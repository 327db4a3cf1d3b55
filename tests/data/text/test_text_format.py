"""Files of another format: the ways to convert them that messages name."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, check_first_line

TABLES = {
    "a.csv": 'inputs,targets\n"a, ""b""\nc",d\n',
    "a.tsv": 'inputs\ttargets\n"a, ""b""\nc"\td\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_the_program_that_a_message_names_converts_a_table(name: str, tmp_path: Path) -> None:
    (tmp_path / f"FILE{Path(name).suffix}").write_text(TABLES[name])
    with pytest.raises(InputError, match="is a table") as refused:
        check_first_line(Path(name), b"inputs,targets", RecordFormat.PAIRS, PAIR_FIELDS)
    program = re.search("python3 .*FILE.jsonl", str(refused.value))
    assert program is not None
    subprocess.run(program[0], shell=True, cwd=tmp_path, check=True)  # noqa: S602 - our own text
    record = json.loads((tmp_path / "FILE.jsonl").read_text())
    assert record == {"inputs": 'a, "b"\nc', "targets": "d"}
