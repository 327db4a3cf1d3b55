"""Real tokens per second on a GPU, by the longest sample and by how samples form micro-batches.

    python benchmarks/gpu_lengths.py FOLDER [--json OUT.json] [--longest 8192] [--smoke]

Needs a CUDA device, and says so where there is none. A GPT of 350 million parameters in bfloat16 on
one stage. Lengths are those of `long_tails.py` (90 % lognormal with a median of 400 tokens, 10 %
Pareto from 2,000 tokens on), cut at a maximum; 65,536 tokens per iteration. The rules of today have
for each batch the size whose plan is predicted to be fastest. Slices are for 32,768 tokens alone.
--longest 8192 leaves that maximum out, and takes four minutes. Called again, the script continues
where it was stopped. --smoke takes a tiny model and short samples on whatever device there is: it
shows that this script works, and measures nothing.
"""

import argparse
import json
import random
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from dynapipe_hpc.report.summary import RunSummary
from gpu_layouts import CONFIGS, SMOKE, dynapipe, overrides, trained, usable_bytes, write

MAXIMA = (2048, 8192, 32768)
BATCH_TOKENS, N_ITERATIONS = 65536, 8
RULES = {
    "dynamic": '{rule = "dynamic", layouts = ["padded", "packed"]}',
    "dynamic, slices": '{rule = "dynamic", layouts = ["packed"], slices = 1024}',
    "packed": '{rule = "packed_balanced"}',
    "token budget": '{rule = "token_budget"}',
}
SIZES = (
    "model.n_layers=24",
    "model.hidden_size=1024",
    "model.n_heads=16",
    "model.ffn_size=4096",
    f"training.iterations={N_ITERATIONS}",
    f"data.tokens_per_batch={BATCH_TOKENS}",
    'planner.cost.recompute=["none"]',
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--longest", type=int, choices=MAXIMA, default=MAXIMA[-1])
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if not arguments.smoke and not torch.cuda.is_available():
        sys.exit("gpu_lengths: needs a CUDA device, and torch sees none; --smoke does without")
    results: dict[str, list[RunSummary]] = {}
    maxima = (256, 512) if arguments.smoke else MAXIMA[: MAXIMA.index(arguments.longest) + 1]
    for maximum, summaries in measure(arguments.folder, maxima, smoke=arguments.smoke):
        results[f"{maximum:,}"] = summaries
        for s in summaries:
            rate, off = s.real_tokens_per_s, s.time_error
            print(f"{maximum:>8} {s.name:16} {rate:9,.0f} tokens/s, {off:5.1%} off", flush=True)
        if arguments.json:
            write(arguments.json, "gpt", results)


def measure(
    folder: Path, maxima: Sequence[int], *, smoke: bool
) -> Iterator[tuple[int, list[RunSummary]]]:
    """Maxima, the largest first, and the summaries of the rules that fit."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = SMOKE if smoke else (*SIZES, f"cluster.device_memory_bytes={usable_bytes()}")
    table, config = folder / "costs.h5", CONFIGS / "gpt.toml"
    sizes = (*sizes, f"model.max_tokens={maxima[-1]}", f'planner.cost.path="{table}"')
    for maximum in reversed(maxima):
        corpus = make_corpus(folder, maximum)
        settings = [*sizes, f'data.dataset="{corpus}"', f"data.max_tokens={maximum}"]
        if not table.exists():
            largest = ("--microbatch-tokens", maximum)
            batch = f"planner.batch={RULES['dynamic, slices']}"  # measures slices, too
            dynapipe("profile", config, "-o", table, *largest, *overrides([*settings, batch]))
        has_slices = smoke or maximum == MAXIMA[-1]
        rules = {name: rule for name, rule in RULES.items() if has_slices or "slices" not in rule}
        yield maximum, of_rules(folder, config, maximum, settings, rules)


def of_rules(
    folder: Path, config: Path, maximum: int, settings: Sequence[str], rules: Mapping[str, str]
) -> list[RunSummary]:
    """The summaries of all rules that fit."""
    found = []
    for rule, batch in rules.items():
        output = folder / f"{maximum}-{rule.replace(', ', '-').replace(' ', '-')}"
        found.append(trained(config, [*settings, f"planner.batch={batch}"], output, rule))
    return [summary for summary in found if summary is not None]


def make_corpus(folder: Path, maximum: int) -> Path:
    """A corpus of enough samples for all iterations."""
    source, corpus = folder / f"{maximum}.jsonl", folder / f"{maximum}.h5"
    if not corpus.exists():
        with source.open("w", encoding="utf-8") as file:
            file.writelines(lines(maximum))
        dynapipe("preprocess", source, corpus)
    return corpus


def lines(maximum: int) -> Iterator[str]:
    """JSON lines of random letters; a token is a byte, and one more ends a sample."""
    draw = random.Random(maximum)  # noqa: S311 - no secret
    left = 2 * N_ITERATIONS * BATCH_TOKENS
    while left > 0:
        is_tail = draw.random() < 0.1
        drawn = 2000 * draw.paretovariate(1) if is_tail else draw.lognormvariate(5.99, 1)
        length = max(8, min(int(drawn), maximum))
        text = "".join(draw.choices(string.ascii_letters, k=length - 1))
        yield json.dumps({"inputs": text[:4], "targets": text[4:]}) + "\n"
        left -= length


if __name__ == "__main__":
    main()
