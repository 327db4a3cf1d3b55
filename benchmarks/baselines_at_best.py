"""With which settings is each way to form micro-batches at its best?

    python benchmarks/baselines_at_best.py CONFIG [--batches 10] [--json OUT.json]

Plans the first global batches of a configuration in every way, with every setting of a small
sweep, as somebody would who looks for the fastest: by the predictions of its own cost table
(`profile`), without training. `tokens/s` is real tokens per predicted second, `real` the share of
computed tokens that are real; `best` marks a rule's best setting. Settings whose micro-batches do
not fit into memory, or are larger than what was measured, are left out.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from measured import print_table, write_json

COLUMNS = {"tokens/s": "{:.0f}", "real": "{:.2f}", "best": "{:.0f}"}
N_ROWS = (1, 2, 3, 4, 8)
SHARES = (0, 1 / 8, 1 / 4, 1 / 2, 1)  # of data.max_tokens; 0: as long as the longest sample
OF_TOKENS = ("token_budget", "packed_next_fit", "packed_balanced")
BUDGETS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1, 5 / 4, 3 / 2, 2, 3)  # of data.max_tokens

Row = dict[str, float]


class Setting(NamedTuple):
    """One line of a sweep.

    Attributes:
        rule: Of [planner.batch].
        value: The table, as --set takes it.
    """

    rule: str
    value: str


def settings_of(config: ExperimentConfig) -> Iterator[Setting]:
    """All that are tried."""
    longest = config.data.max_tokens
    yield Setting("dynamic", "{rule='dynamic'}")
    for n in N_ROWS:
        yield Setting("naive_padding", f"{{rule='naive_padding', rows_per_microbatch={n}}}")
    for rule, share in product(OF_TOKENS, BUDGETS):
        tokens = int(share * longest)
        yield Setting(rule, f"{{rule='{rule}', tokens_per_microbatch={tokens}}}")
    target_shares = SHARES if config.model.has_target_rows else (0,)
    for n in N_ROWS:
        for row_share in (0, 1):
            for target_share in target_shares:
                rows, targets = int(row_share * longest), int(target_share * longest)
                yield Setting(
                    "dense_packing",
                    f"{{rule='dense_packing', rows_per_microbatch={n}, row_tokens={rows}, "
                    f"target_tokens={targets}}}",
                )


def measure(path: Path, setting: Setting, batches: Sequence[Sequence[Sample]]) -> Row:
    """Predictions of all batches with a setting.

    Raises:
        InputError: It cannot be planned.
    """
    config = load_config(path, [f"planner.batch={setting.value}"])
    planner = Experiment(config).open().planner
    pipelines = [p for samples in batches for p in planner.choose(samples).pipelines]
    padded = sum(m.padded_tokens for p in pipelines for m in p.microbatches)
    ends_ms = [p.timeline.makespan_ms for p in pipelines]
    n_replicas = config.cluster.n_replicas
    predicted_ms = sum(max(ends_ms[i : i + n_replicas]) for i in range(0, len(ends_ms), n_replicas))
    real = sum(sample.tokens for samples in batches for sample in samples)
    return {"tokens/s": 1e3 * real / predicted_ms, "real": real / padded, "best": 0}


def measure_all(path: Path, n_batches: int) -> dict[str, Row]:
    config = load_config(path)
    sampler = Experiment(config).sampler
    batches = [sampler.iteration(k) for k in range(n_batches)]
    rows: dict[Setting, Row] = {}
    for setting in settings_of(config):
        try:
            rows[setting] = measure(path, setting, batches)
        except InputError:
            continue
    for rule in {setting.rule for setting in rows}:
        of_rule = {s: row for s, row in rows.items() if s.rule == rule}
        rows[max(of_rule, key=lambda s: of_rule[s]["tokens/s"])]["best"] = 1
    return {setting.value: row for setting, row in rows.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure_all(arguments.config, arguments.batches)
    print_table(found, COLUMNS)
    if arguments.json:
        write_json(arguments.json, found)
