"""Real tokens per second on a GPU, by how samples form micro-batches.

    python benchmarks/gpu_layouts.py gpt FOLDER [--json OUT.json]
    python benchmarks/gpu_layouts.py t5 FOLDER [--json OUT.json]
    python benchmarks/gpu_layouts.py gpt FOLDER --smoke

Needs a CUDA device, and says so where there is none. A model of more than a billion parameters in
bfloat16 on one stage, samples of up to 4096 tokens, 65,536 tokens per iteration. Every rule trains
with each of its settings, and its best setting counts. What is measured is what the command line
does: corpus, costs and runs stay in FOLDER, and called again, it continues where it was stopped.
A setting that does not fit into memory is left out. --smoke takes a tiny model on
whatever device there is: it shows that this script works, and measures nothing.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.summary import RunSummary, summarise

CONFIGS = Path(__file__).parent / "gpu"
N_SAMPLES, MAX_BYTES = 20_000, 8192
MEMORY_SHARE = 0.85
# Also where the package lies on the path, without its script.
COMMAND_LINE = "from dynapipe_hpc.cli.main import main; raise SystemExit(main())"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=["gpt", "t5"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if not arguments.smoke and not torch.cuda.is_available():
        sys.exit("gpu_layouts: needs a CUDA device, and torch sees none; --smoke does without")
    results = measure(arguments.family, arguments.folder, smoke=arguments.smoke)
    show(results)
    if arguments.json:
        write(arguments.json, arguments.family, results)


def measure(family: str, folder: Path, *, smoke: bool) -> dict[str, list[RunSummary]]:
    """The summaries of all settings that fit, by rule."""
    folder.mkdir(parents=True, exist_ok=True)
    config, corpus = CONFIGS / f"{family}.toml", make_corpus(folder)
    settings = [f'data.dataset="{corpus}"', f'planner.cost.path="{folder / f"{family}.h5"}"']
    settings += SMOKE if smoke else [f"cluster.device_memory_bytes={usable_bytes()}"]
    dynapipe("profile", config, "-o", folder / f"{family}.h5", *overrides(settings))
    results: dict[str, list[RunSummary]] = {}
    for rule, batches in BATCHES.items():
        for k, batch in enumerate(batches):
            output = folder / f"{family}-{rule.replace(' ', '-')}-{k}"
            summary = trained(config, [*settings, f"planner.batch={batch}"], output, batch)
            results.setdefault(rule, []).extend([] if summary is None else [summary])
    return results


def trained(config: Path, settings: Sequence[str], output: Path, name: str) -> RunSummary | None:
    """The summary of a run; None if it does not fit."""
    if not finished(output) and not dynapipe("run", config, "-o", output, *overrides(settings)):
        return None
    return summarise(name, RunFolder.open(output).records())


def finished(output: Path) -> bool:
    """Whether a run has ended; what is left of another is put aside."""
    marker = output.with_suffix(".done")
    if not marker.exists() and output.exists():
        output.rename(output.with_suffix(f".{len(list(output.parent.iterdir()))}"))
    return marker.exists()


def make_corpus(folder: Path) -> Path:
    """A corpus of instruction tasks of uneven lengths."""
    source, corpus = folder / "corpus.jsonl", folder / "corpus.h5"
    if not corpus.exists():
        limits = ("--samples", N_SAMPLES, "--max-bytes", MAX_BYTES, "--seed", 1)
        dynapipe("demo-corpus", source, *limits, "--force")
        dynapipe("preprocess", source, corpus)
    return corpus


def usable_bytes() -> int:
    """Of the device, what is left for a job."""
    free, _ = torch.cuda.mem_get_info()
    return int(MEMORY_SHARE * free)


def overrides(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def dynapipe(*words: object) -> bool:
    """Runs a verb in a process of its own, which gives back its memory; whether it succeeded."""
    command = [sys.executable, "-c", COMMAND_LINE, *map(str, words)]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    verb, output = words[0], words[words.index("-o") + 1] if "-o" in words else None
    if done.returncode and verb != "run":
        sys.exit(f"gpu_layouts: {verb} failed")
    if isinstance(output, Path) and verb == "run" and not done.returncode:
        output.with_suffix(".done").touch()
    return not done.returncode


def show(results: dict[str, list[RunSummary]]) -> None:
    print(f"{'':40} tokens/s  real   time error  peak error")
    for rule, summaries in results.items():
        for s in sorted(summaries, key=lambda s: -s.real_tokens_per_s)[:1]:
            print(
                f"{rule + ': ' + s.name:40} {s.real_tokens_per_s:8,.0f} {s.padding_efficiency:5.0%}"
                f" {s.time_error:10.1%} {s.peak_error:11.1%}"
            )


def write(path: Path, family: str, results: dict[str, list[RunSummary]]) -> None:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    content = {
        "machine": machine_facts(1) | {"gpu": gpu},
        "family": family,
        "results": {rule: [*map(_numbers, of_rule)] for rule, of_rule in results.items()},
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _numbers(run: RunSummary) -> dict[str, object]:
    names = ("name", "real_tokens_per_s", "padding_efficiency", "measured_ms")
    return {name: getattr(run, name) for name in (*names, "time_error", "peak_error")}


if __name__ == "__main__":
    main()
