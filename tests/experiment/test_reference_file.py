"""Files of log-probabilities by a reference model: kept bit by bit, and refused if damaged."""

from pathlib import Path

import numpy as np
import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.reference_pass import ReferenceFile


def test_numbers_come_back_bit_by_bit_and_unknown_ones_are_nan(tmp_path: Path) -> None:
    file = ReferenceFile.from_dataset(tmp_path / "x.h5", "ab" * 32, 3)
    assert np.isnan(file.read()).tolist() == [[True, True]] * 3
    known = np.array([[-0.1, -1e-300], [np.nan, np.nan], [-3.0, -4.0]])
    file.write(known)
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5.abababababababab.reference"]
    assert file.read().tobytes() == known.tobytes()


def test_a_damaged_or_other_file_is_refused(tmp_path: Path) -> None:
    file = ReferenceFile.from_dataset(tmp_path / "x.h5", "ab" * 32, 2)
    file.write(np.zeros((2, 2)))
    good = file.path.read_bytes()
    longer = ReferenceFile(file.path, file.fingerprint, 3)
    other = ReferenceFile(file.path, "ab" * 31 + "cd", 2)
    for reader in (longer, other):
        with pytest.raises(InputError, match="is damaged, or of other samples or another model"):
            reader.read()
    for bad in (b"", b"{}", good[:-1], good[:-3] + b"abc", b"no json\n" + good):
        file.path.write_bytes(bad)
        with pytest.raises(InputError, match="remove it, and it is computed again"):
            file.read()
