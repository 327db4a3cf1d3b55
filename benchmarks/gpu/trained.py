"""Runs of the command line that several steps need: a corpus, settings, processes."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from dynapipe_hpc.report.comparison import RunSummary, summarise
from dynapipe_hpc.report.run_folder import RunFolder

CONFIGS = Path(__file__).parent
N_SAMPLES, MAX_BYTES = 20_000, 8192
MEMORY_SHARE = 0.85
# Also where the package lies on the path, without its script.
COMMAND_LINE = "from dynapipe_hpc.cli.main import main; raise SystemExit(main())"
SMOKE = (
    "data.max_tokens=256",
    "data.tokens_per_batch=2048",
    "model.n_layers=1",
    "model.hidden_size=32",
    "model.n_heads=2",
    "model.ffn_size=64",
    "model.vocab_size=264",
    "training.iterations=4",
    'training.device="auto"',
    "cluster.device_memory_bytes=2000000000",
)


def trained(config: Path, settings: Sequence[str], output: Path, name: str) -> RunSummary | None:
    """The summary of a run; None if it does not fit."""
    if not dynapipe("run", config, "-o", output, *overrides(settings)):
        return None
    return summarise(name, RunFolder.open(output).records())


def make_corpus(folder: Path) -> Path:
    """A corpus of instruction tasks of uneven lengths."""
    source, corpus = folder / "corpus.jsonl", folder / "corpus.h5"
    if not corpus.exists():
        limits = ("--samples", N_SAMPLES, "--max-bytes", MAX_BYTES, "--seed", 1)
        dynapipe("demo-corpus", source, *limits, "--force")
        dynapipe("preprocess", source, corpus)
    return corpus


def usable_bytes() -> int:
    """Memory of the device that is left for a job."""
    free, _ = torch.cuda.mem_get_info()
    return int(MEMORY_SHARE * free)


def on_ranks(n_ranks: int, *words: object, settings: Mapping[str, str] | None = None) -> int:
    """The exit code of a Python program on several ranks."""
    mpiexec = Path(sys.executable).parent / "mpiexec"
    command = [str(word) for word in (mpiexec, "-n", n_ranks, sys.executable, *words)]
    return subprocess.run(command, env=os.environ | (settings or {}), check=False).returncode


def overrides(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def dynapipe(*words: object) -> bool:
    """Runs a verb in a process of its own, which gives back its memory; whether it succeeded."""
    command = [sys.executable, "-c", COMMAND_LINE, *map(str, words)]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    if done.returncode and words[0] != "run":
        sys.exit(f"{words[0]} failed")
    return not done.returncode
