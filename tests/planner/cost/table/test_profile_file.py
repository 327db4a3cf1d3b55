from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.examples.measured_layers import linear_layer, linear_table
from tests.examples.published import SHAPES

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.planner.cost.table.import_csv import import_csv
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import HALVES, QUANTITIES, LayerKey, checksum_of

LAYER = LayerKey(1, "none", "layer")


def test_a_table_reads_back_as_it_was_written(tmp_path: Path) -> None:
    layer, path = linear_layer(1.0), tmp_path / "costs.h5"
    halves = replace(layer, input_ms=1.5 * layer.forward_ms, weight_ms=layer.forward_ms)
    written = linear_table(layer=replace(halves, pair_ms=np.array([0.25, 0.5])))
    write_table(written, path)
    found = read_table(path)
    assert found.model == written.model
    assert found.update == written.update
    assert found.link == written.link
    assert found.provenance == written.provenance
    assert (found.element_bytes, found.state_factor) == (4, 4.0)
    assert found.layers.keys() == written.layers.keys()
    for key, layer in written.layers.items():
        assert found.layers[key].parameter_bytes == layer.parameter_bytes
        for axis, expected in zip(found.layers[key].axes, layer.axes, strict=True):
            np.testing.assert_array_equal(axis, expected)
        for quantity in (*QUANTITIES, *(HALVES if key.kind == "layer" else ())):
            np.testing.assert_array_equal(found.layers[key].grid(quantity), layer.grid(quantity))
    pair_ms, head = found.layers[LAYER].pair_ms, found.layers[LAYER._replace(kind="head")]
    assert pair_ms is not None and pair_ms.tolist() == [0.25, 0.5]
    assert head.input_ms is None and head.weight_ms is None and head.pair_ms is None
    with h5py.File(path, "a") as file:
        file["layers/tensor_parallel=1/recompute=none/layer/pair_ms"][0] = 0.5
    with pytest.raises(InputError, match="checksum is"):
        read_table(path)


def test_a_table_of_another_version_is_refused(tmp_path: Path) -> None:
    write_table(linear_table(), tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5", "r+") as file:
        file.attrs["schema_version"] = 4
    with pytest.raises(InputError, match="a cost table of version 4, but this dynapipe-hpc reads"):
        read_table(tmp_path / "c.h5")


def test_the_checksum_stays_the_same() -> None:
    assert checksum_of(linear_table()) == "7c2c661ad1eed7fb"


def test_a_half_that_is_missing_where_a_pass_was_measured_is_named(tmp_path: Path) -> None:
    layer = linear_layer(1.0)
    table = linear_table(layer=replace(layer, weight_ms=np.full_like(layer.forward_ms, np.nan)))
    write_table(table, tmp_path / "c.h5")
    with pytest.raises(InputError, match=r"has forward_ms but no weight_ms at \[0, 0\]"):
        read_table(tmp_path / "c.h5")


GPT = SHAPES["gpt"]
HEADER = (
    "tensor_parallel,recompute,layer,microbatch_size,input_tokens,target_tokens,"
    "forward_ms,backward_ms,stored_activation_mb,peak_activation_mb\n"
)
PARAMETERS = (
    "tensor_parallel,recompute,layer,parameter_mb\n1,none,encoder,400\n1,none,embedding,50\n"
)


def write(folder: Path, rows: str, parameters: str = PARAMETERS) -> tuple[Path, Path]:
    profiles, sizes = folder / "p.csv", folder / "p_parameters.csv"
    profiles.write_text(HEADER + rows)
    sizes.write_text(parameters)
    return profiles, sizes


def test_a_measured_layer_is_read_in_ms_and_bytes(tmp_path: Path) -> None:
    rows = "1,none,encoder,1,16,0,1.5,2.5,3,10\n1,none,encoder,2,16,0,2,3,6,20\n"
    table = import_csv(*write(tmp_path, rows), GPT)
    layer = table.layers[LAYER]
    assert [axis.tolist() for axis in layer.axes] == [[1, 2], [16]]
    assert layer.forward_ms.tolist() == [[1.5], [2.0]]
    assert layer.backward_ms.tolist() == [[2.5], [3.0]]
    assert layer.stored_bytes.tolist() == [[3e6], [6e6]]
    assert layer.forward_transient_bytes.tolist() == [[7e6], [14e6]]
    assert layer.backward_transient_bytes.tolist() == [[0.0], [0.0]]
    assert layer.parameter_bytes == 4e8


def test_the_head_takes_time_but_no_memory_and_the_embedding_the_opposite(tmp_path: Path) -> None:
    rows = "1,none,encoder,2,16,0,1,1,1,5\n1,none,postprocess,2,16,0,3,4,,\n"
    layers = import_csv(*write(tmp_path, rows), GPT).layers
    head, embedding = (layers[LayerKey(1, "none", kind)] for kind in ("head", "embedding"))
    assert (head.forward_ms.tolist(), embedding.forward_ms.tolist()) == ([[3.0]], [[0.0]])
    assert (head.parameter_bytes, embedding.parameter_bytes) == (0.0, 5e7)
    for layer in (head, embedding):
        assert layer.stored_bytes.tolist() == [[0.0]]
        assert layer.forward_transient_bytes.tolist() == [[0.0]]
