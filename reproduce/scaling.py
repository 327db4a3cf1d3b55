"""Scaling to thousands of GPUs in simulation, and how many processor cores plan for them."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dynapipe_hpc.experiment.study.predict import tokens_per_s
from reproduce import methods
from reproduce.cluster import LINKS, cluster_table
from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.studies import FROM_TABLES, Found, Studies, Study, of_method

N_LAYERS = 128
N_STAGES, N_SHARDS = 16, 4
GPUS_PER_REPLICA = N_STAGES * N_SHARDS
N_REPLICAS = (1, 4, 16, 64)
LONGEST = 2048
N_BATCHES = 2
WEAK, STRONG = "weak", "strong"
TOKENS_PER_GPU = 1024
STRONG_TOKENS = TOKENS_PER_GPU * GPUS_PER_REPLICA * N_REPLICAS[2]
PLANNERS = (methods.PUBLISHED, methods.PADDED, methods.ALL)
TITLES = {
    WEAK: f"weak: {TOKENS_PER_GPU:,} tokens per GPU",
    STRONG: f"strong: {STRONG_TOKENS:,} tokens",
}
CORES_PER_GPU = 12
"""Processor cores of the paper's machines, which have 96 for eight GPUs."""
INPUTS = (
    f"Simulated: {N_BATCHES} global batches of drawn lengths, samples of up to {LONGEST:,} tokens, "
    f"planned {FROM_TABLES}. {LINKS} A GPT of 26B ({N_LAYERS} layers of the 6.7B), {N_STAGES} "
    f"stages of {N_SHARDS} shards; clusters grow by replicas."
)


def simulate_all(studies: Studies) -> Found:
    """Simulates weak and strong scaling."""
    asked = {
        study.name: study
        for n_replicas in N_REPLICAS
        for tokens in (_tokens(WEAK, n_replicas), STRONG_TOKENS)
        for study in [_study(n_replicas, tokens)]
    }
    return studies.run(list(asked.values()))


def figures(found: Found) -> list[Figure]:
    """Throughput per GPU, and cores that plan as fast as the cluster trains."""
    rows = [row for kind in TITLES for n in N_REPLICAS for row in _rows(found, kind, n)]
    return [
        Figure(
            "scaling",
            "How does throughput scale to thousands of GPUs?",
            INPUTS,
            "Weak scaling loses what reductions of gradients take, and a little as replicas end "
            "at different times; strong scaling loses more, as pipelines of few micro-batches "
            "stay empty for long.",
            rows,
            partial(_draw, rows, "tokens_per_s_per_gpu", "real tokens/s per GPU"),
            [*_claims_of_throughput(rows)],
        ),
        Figure(
            "scaling_planning",
            "How many processor cores plan as fast as a large cluster trains?",
            f"{INPUTS} Measured: processor time of one thread on the machine that made this page, "
            "from lengths to the checked bytes of the plans of all ranks; cores are its ratio to "
            "the simulated iteration, as iterations are planned in parallel.",
            "As many as batches are large; but nodes bring more cores than they need.",
            rows,
            partial(_draw, rows, "cores", "planning / iteration"),
            [*_claims_of_planning(rows)],
        ),
    ]


def _tokens(kind: str, n_replicas: int) -> int:
    return STRONG_TOKENS if kind == STRONG else TOKENS_PER_GPU * GPUS_PER_REPLICA * n_replicas


def _study(n_replicas: int, tokens: int) -> Study:
    tables: dict[str, Any] = {
        "data": {"max_tokens": LONGEST, "tokens_per_batch": tokens},
        "cluster": cluster_table(n_replicas, N_STAGES, N_SHARDS),
        "model": {"n_layers": N_LAYERS, "layers_per_stage": [N_LAYERS // N_STAGES] * N_STAGES},
        "training": {"iterations": N_BATCHES},
    }
    every = (methods.published(), methods.padded(), methods.everything())
    return Study(f"scaling/{n_replicas}_{tokens}", "gpt", every, tables, seeds=(0,))


def _rows(found: Found, kind: str, n_replicas: int) -> Iterator[Row]:
    tokens, n_gpus = _tokens(kind, n_replicas), n_replicas * GPUS_PER_REPLICA
    [of_seed] = found[_study(n_replicas, tokens).name]
    for method in PLANNERS:
        planned = of_method(of_seed, method)
        rate = tokens_per_s([each.record for each in planned])
        if rate is None:
            continue
        planning_ms = sum(each.planning_ms for each in planned) / len(planned)
        iteration_ms = sum(each.record.iteration_ms for each in planned) / len(planned)
        yield {
            "scaling": kind,
            "gpus": n_gpus,
            "tokens": tokens,
            "method": method,
            "tokens_per_s_per_gpu": rate / n_gpus,
            "iteration_ms": iteration_ms,
            "planning_ms": planning_ms,
            "cores": planning_ms / iteration_ms,
        }


def _draw(rows: Sequence[Row], y: str, label: str, path: Path) -> None:
    panels = {
        title: [row for row in rows if row["scaling"] == kind] for kind, title in TITLES.items()
    }
    draw_lines(path, panels, "gpus", y, "GPUs", label)


def _values(rows: Sequence[Row], kind: str, method: str, column: str) -> dict[int, float]:
    return {
        int(row["gpus"]): float(row[column])
        for row in rows
        if (row["scaling"], row["method"]) == (kind, method)
    }


def _claims_of_throughput(rows: Sequence[Row]) -> Iterator[Claim]:
    for kind, title in TITLES.items():
        for method in (methods.PUBLISHED, methods.ALL):
            rates = _values(rows, kind, method, "tokens_per_s_per_gpu")
            least, most = min(rates), max(rates)
            told = ", ".join(f"{rate / rates[least]:.2f} on {n:,}" for n, rate in rates.items())
            yield Claim(
                "Scaling (ours)",
                f"{title}: {method} keeps at least half of the throughput per GPU",
                "-",
                f"{told} GPUs",
                rates[most] > 0.5 * rates[least],
            )
    ahead = [
        ours / published
        for kind in TITLES
        for ours, published in zip(
            _values(rows, kind, methods.ALL, "tokens_per_s_per_gpu").values(),
            _values(rows, kind, methods.PUBLISHED, "tokens_per_s_per_gpu").values(),
            strict=True,
        )
    ]
    yield Claim(
        "Scaling (ours)",
        "ours is faster than DynaPipe as published on 64 to 4,096 GPUs",
        "-",
        f"{min(ahead):.3f}x to {max(ahead):.3f}x",
        min(ahead) > 1,
    )


def _claims_of_planning(rows: Sequence[Row]) -> Iterator[Claim]:
    for method in PLANNERS:
        told = []
        shares = []
        for kind in TITLES:
            cores = _values(rows, kind, method, "cores")
            n_gpus = max(cores)
            n_cores = CORES_PER_GPU * n_gpus
            told.append(f"{kind}: {math.ceil(cores[n_gpus])} of {n_cores:,} on {n_gpus:,} GPUs")
            shares += [ratio / n for n, ratio in cores.items()]
        yield Claim(
            "Scaling (ours)",
            f"{method}: a hundredth of the cluster's processor cores hides planning",
            "-",
            "; ".join(told),
            max(shares) < 0.01 * CORES_PER_GPU,
        )
