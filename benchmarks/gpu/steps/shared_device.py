"""Ranks that share a device, staged through the host: equal to one process, and a run."""

import shutil

import torch

from dynapipe_hpc.report.run_folder import RunFolder
from gpu.finding import folder, note
from gpu.trained import COMMAND_LINE, CONFIGS, SMOKE, dynapipe, on_ranks, overrides

TESTS = ("tests/mpi/test_training.py", "-m", "mpi and not slow", "-q", "-p", "no:cacheprovider")
N_STAGES, N_SAMPLES = 4, 2000
SETTINGS = (
    *SMOKE,
    f"model.n_layers={N_STAGES}",
    f"cluster.n_stages={N_STAGES}",
    'planner.cost={kind="analytic"}',
    "training.iterations=12",
)


def main() -> None:
    compare(2)
    train()
    compare(4)


def compare(n_ranks: int) -> None:
    """Reports whether ranks on one device train as one process does."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    which = ("-k", f"share_a_device and {device}")
    code = on_ranks(n_ranks, "-m", "mpi4py", "-m", "pytest", *TESTS, *which)
    told = "equal" if code == 0 else "not equal, see the log"
    note(f"{n_ranks} ranks on {device}: weights of one process", told, "equal", code == 0)


def train() -> None:
    """Reports on a run of four stages."""
    place = folder() / "shared"
    shutil.rmtree(place, ignore_errors=True)  # a run there would be resumed
    place.mkdir()
    text, corpus, run = place / "corpus.jsonl", place / "corpus.h5", place / "run"
    dynapipe("demo-corpus", text, "--samples", N_SAMPLES, "--seed", 1)
    dynapipe("preprocess", text, corpus)
    settings = [f'data.dataset="{corpus}"', *SETTINGS]
    verb = ["run", CONFIGS / "gpt.toml", "-o", run, *overrides(settings)]
    code = on_ranks(N_STAGES, "-c", COMMAND_LINE, *verb)
    note(f"run of {N_STAGES} stages ends with", code, "0", code == 0)
    if code:
        return
    losses = [record.loss for record in RunFolder.open(run).records()]
    told = f"{losses[0]:.3f}, {losses[-1]:.3f}"
    note("first and last loss", told, "falls", losses[-1] < losses[0])


if __name__ == "__main__":
    main()
