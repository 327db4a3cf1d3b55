"""Attributes of HDF5 files, whichever program wrote them."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.examples.measured_layers import linear_table

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.stored_file import StoredAttributes
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table

TEXTS = {
    "fixed length": np.bytes_("caf\u00e9".encode()),
    "variable length": "caf\u00e9",
    "fixed length, declared as UTF-8": np.array(
        "caf\u00e9".encode(), h5py.string_dtype("utf-8", 5)
    ),
    "padded": np.array("caf\u00e9".encode(), "S40"),
    "one in an array": ["caf\u00e9"],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_is_read_of_whichever_type(tmp_path: Path, kind: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["name"] = TEXTS[kind]
        found = StoredAttributes(file)["name"]
    assert found == (("caf\u00e9",) if kind == "one in an array" else "caf\u00e9")


def test_many_texts_of_variable_length_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["names"] = ["x"] * 65
        with pytest.raises(InputError, match="attribute 'names' has 65 texts of variable length"):
            StoredAttributes(file)["names"]


def with_variable_length(group: h5py.Group) -> None:
    """Every text becomes what other programs write, h5py among them."""
    for name, value in group.attrs.items():
        if isinstance(value, bytes):
            group.attrs[name] = value.decode()
        elif getattr(value, "dtype", np.dtype(int)).kind == "S":
            group.attrs[name] = [each.decode() for each in value.tolist()]


def test_a_cost_table_with_texts_of_variable_length_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    write_table(linear_table(), path)
    before = read_table(path)
    with h5py.File(path, "a") as file:
        with_variable_length(file)
        file.visititems(lambda _, found: with_variable_length(found))
    assert read_table(path).provenance == before.provenance
    assert read_table(path).layers.keys() == before.layers.keys()
