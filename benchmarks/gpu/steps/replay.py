"""A simulation, not a measurement: the measured layers in pipelines of 4 and 8 stages."""

from statistics import median

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from gpu.finding import folder, lacks, note, rehearses
from gpu.steps.training import SIZES
from gpu.trained import CONFIGS, SMOKE

N_BATCHES = 3
BATCHES = {
    "dynamic": [
        f'{{rule = "dynamic", layouts = {layouts}}}'
        for layouts in ('["padded"]', '["padded", "packed"]')
    ],
    "dense packing": [
        f'{{rule = "dense_packing", rows_per_microbatch = {n}}}' for n in (1, 2, 4, 8)
    ],
    "token budget": [
        f'{{rule = "token_budget", tokens_per_microbatch = {n}}}'
        for n in (4096, 8192, 16384, 32768)
    ],
    "naive padding": [f'{{rule = "naive_padding", rows_per_microbatch = {n}}}' for n in (2, 4, 8)],
}
# NVLink; the table of one rank has no link.
LINK = "cluster.link={latency_ms=0.02, bytes_per_ms=2e8}"


def main() -> None:
    place = folder() / "training"
    table, corpus = place / "gpt.h5", place / "corpus.h5"
    if not table.exists():
        lacks("the cost table of the step training")
    settings = [f'data.dataset="{corpus}"', f'planner.cost.path="{table}"', LINK]
    settings += SMOKE if rehearses() else [*SIZES, 'cluster.device_memory_bytes="40GB"']
    for n_stages in (4, 8):
        shape = [f"cluster.n_stages={n_stages}", "model.n_layers=24"]
        best = {
            rule: min(predicted_ms([*settings, *shape, f"planner.batch={b}"]) for b in batches)
            for rule, batches in BATCHES.items()
        }
        for rule, ms in best.items():
            note(f"simulated, {n_stages} stages, {rule}: ms", ms)
        others = min(ms for rule, ms in best.items() if rule != "dynamic")
        gain = others / best["dynamic"]
        note(f"simulated, {n_stages} stages: gain over the next", gain, ">= 1", gain >= 1)


def predicted_ms(settings: list[str]) -> float:
    """Median predicted time of some iterations; infinite if a micro-batch does not fit."""
    experiment = Experiment(load_config(CONFIGS / "gpt.toml", settings)).open()
    batches = [experiment.sampler.iteration(k) for k in range(N_BATCHES)]
    try:
        plans = [experiment.planner.make_plans(k, batch) for k, batch in enumerate(batches)]
    except InputError:
        return float("inf")
    return median(of_ranks[0].prediction.iteration_ms for of_ranks in plans)


if __name__ == "__main__":
    main()
