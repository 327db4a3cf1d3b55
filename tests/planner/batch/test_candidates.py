import json

import numpy as np
import pytest
from tests.oracles.length_samples import samples_of
from tests.oracles.linear_cost import LinearCost
from tests.oracles.shared_folder import shared_folder

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.cost.import_csv import import_csv
from dynapipe_hpc.planner.cost.profiled import ProfiledCost

GPT = ModelShape(
    n_layers=16, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
)
A100S = Cluster(n_stages=4, device_memory_bytes=40_000_000_000)


def test_samples_of_one_row_length_share_a_row_and_what_does_not_fit_is_infinite() -> None:
    samples = order_samples(samples_of([20, 7, 24, 3]))
    cost = LinearCost(launch_ms=(1.0, 2.0), token_ms=(0.1, 0.1), token_bytes=2.0)
    found = candidates(samples, cost, Cluster(n_stages=2, device_memory_bytes=3 * 48), 1.0)
    assert found.row_of_sample.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(found.work_ms[0], [[4.4, 6.8, np.inf], [2.8, 3.6, np.inf]])
    np.testing.assert_allclose(found.fill_ms[0], [[3.4, 5.8, np.inf], [1.8, 2.6, np.inf]])


def test_every_mode_has_its_own_table_as_far_as_it_fits() -> None:
    samples = order_samples(samples_of([24, 24, 24, 24]))
    cost = LinearCost((1.0, 2.0), (0.1, 0.1), token_bytes=2.0, recomputes=True)
    found = candidates(samples, cost, Cluster(n_stages=2, device_memory_bytes=3 * 48), 1.0)
    # Full recomputation keeps a quarter, and on top comes as much as without: 2 * 1.0 - 0.5
    np.testing.assert_allclose(found.work_ms[:, 0, :2], [[4.4, 6.8], [6.6, 10.2]])
    assert np.isfinite(found.work_ms).sum(axis=2).tolist() == [[2], [4]]


def test_at_most_some_rows_are_kept_of_every_mode() -> None:
    samples = order_samples(samples_of([24, 24, 24, 16]))
    cost = LinearCost(token_bytes=2.0, recomputes=True)
    every = candidates(samples, cost, Cluster(n_stages=2, device_memory_bytes=3 * 48), 1.0)
    few = every.of_at_most(2)
    np.testing.assert_array_equal(few.work_ms, every.work_ms[..., :2])


def costs_one_by_one(samples: list[Sample], cost: CostModel, share: float) -> list[list[float]]:
    """Work of every group of neighbours, infinite where it does not fit."""
    row_tokens = np.array([-(-sample.tokens // 8) * 8 for sample in samples])
    room = A100S.device_memory_bytes - cost.static_bytes
    table = []
    for length in dict.fromkeys(row_tokens.tolist()):
        n_rows = np.arange(1, np.count_nonzero(row_tokens <= length) + 1)
        costs = cost.stage_costs(Shapes.of_rows(n_rows, np.full_like(n_rows, length)))
        transient = np.maximum(costs.forward_transient_bytes, costs.backward_transient_bytes)
        fits = (costs.stored_bytes + transient <= room).all(axis=1)
        fits &= (costs.stored_bytes <= share * room).all(axis=1) | (n_rows == 1)
        table.append(np.where(fits, costs.work_ms.max(axis=1), np.inf).tolist())
    return table


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_nothing_that_fits_is_missed_on_a_measured_table(share: float) -> None:
    profiles = shared_folder("profiles") / "a100_40gb_gpt_6.7b.csv"
    table = import_csv(profiles, profiles.with_stem(f"{profiles.stem}_parameters"), GPT)
    cost = ProfiledCost(table, GPT, A100S, ProfiledConfig(path=profiles))
    lengths = json.loads((shared_folder("lengths") / "gpt_max2048_gbs16384.json").read_text())
    samples = order_samples(samples_of(lengths["batches"][0]))

    found = candidates(samples, cost, A100S, share).work_ms[0]
    for row, expected in zip(found, costs_one_by_one(samples, cost, share), strict=True):
        padding = [np.inf] * (len(samples) - len(row))
        missing = [np.inf] * (len(samples) - len(expected))
        assert [*row, *padding] == [*expected, *missing]
