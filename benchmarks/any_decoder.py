"""A Llama by its own family and through `transformers`: times, kept memory, predictions.

    python benchmarks/any_decoder.py
    python benchmarks/any_decoder.py --predict [--stages 1] [--repeats 3] [--json OUT.json]

A Llama of four layers of width 512 on one processor core in float32, with random weights: forward
and backward passes of the whole model, by turns. "ratio" is the time of its own family over that of
`transformers`, the median of nine; "MB" is what is kept for backward, of either. It takes about
four minutes.

With --predict, a Llama of width 256 is profiled and trained on the demo corpus, a rank per stage,
by either family in turns, and the errors of predicted iterations are compared as by prediction.py,
with real tokens per second; a repeat takes about four minutes. Both need the extra [huggingface].
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from itertools import accumulate, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import tomli_w
import torch
import transformers

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, PaddedRows, Recompute
from dynapipe_hpc.experiment.profile.stack import tokens_on_disk
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import open_weights
from dynapipe_hpc.training.module_stage import ActivationMemory
from dynapipe_hpc.training.objective import WeightedTokens
from measured import print_table, write_json
from prediction import Row, compare, dynapipe, typical

LENGTHS = (300, 200, 120, 80, 40, 20)
N_ROUNDS = 9
FAMILIES = ("llama", "transformers")
SETTINGS = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}
NARROW = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 704}
COUNTED = range(5, 35)
PREDICTED = {
    **dict.fromkeys(("median_error", "mean_error", "mean_peak_error"), "{:.1%}"),
    **dict.fromkeys(("predicted_ms", "measured_ms"), "{:.0f}"),
    "p/m": "{:.3f}",
    "tokens/s": "{:.0f}",
}


def narrow_config(family: str, folder: Path, n_stages: int) -> Path:
    """A configuration for a smaller model, which lies beside it with the demo corpus."""
    path = folder / f"{family}.toml"
    tables: dict[str, dict[str, Any]] = {
        "data": {
            "dataset": str(folder / "corpus.h5"),
            "max_tokens": 512,
            "tokens_per_batch": 4096,
        },
        "model": {"init_from": str(folder / "model"), "family": family},
        "cluster": {"n_replicas": 1, "n_stages": n_stages, "device_memory_bytes": "4GB"},
        "planner": {
            "cost": {"kind": "profiled", "path": str(folder / f"{family}.h5")},
            "batch": {"rule": "dynamic", "layouts": ["padded", "packed"]},
        },
        "training": {"iterations": COUNTED.stop, "learning_rate": 1e-4},
        "report": {"trace_iterations": COUNTED.stop},
    }
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def predict(n_repeats: int, n_stages: int, out: Path | None) -> None:
    """Prints errors of predicted iterations, and writes them to a file."""
    repeats: dict[str, list[Row]] = {family: [] for family in FAMILIES}
    with TemporaryDirectory() as name:
        folder = Path(name)
        config = transformers.LlamaConfig(**SETTINGS | NARROW)
        transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
        corpus = folder / "corpus"
        dynapipe("demo-corpus", f"{corpus}.jsonl", "--samples", 4000, "--seed", 1)
        dynapipe("preprocess", f"{corpus}.jsonl", f"{corpus}.h5")
        for i, family in product(range(n_repeats), FAMILIES):
            config_path, run = narrow_config(family, folder, n_stages), folder / f"{family}_{i}"
            table = folder / f"{family}.h5"
            table.unlink(missing_ok=True)
            dynapipe("profile", config_path, "-o", table, n_ranks=n_stages)
            dynapipe("run", config_path, "-o", run, n_ranks=n_stages)
            row = compare(RunFolder.open(run), COUNTED) | {"load": os.getloadavg()[0]}
            counted = [r for r in RunFolder.open(run).records() if r.iteration in COUNTED]
            measured_s = sum(record.measured_ms for record in counted) / 1e3
            row["tokens/s"] = sum(record.real_tokens for record in counted) / measured_s
            repeats[family].append(row)
            print_table({f"{family} {i}": row}, PREDICTED)
    results = {family: typical(rows) for family, rows in repeats.items()}
    print_table(results, PREDICTED | {"least": "{:.1%}", "most": "{:.1%}"})
    if out:
        write_json(out, results)


def stages() -> list[StageOfFamily]:
    """The same model by both families."""
    made = []
    with TemporaryDirectory() as name:
        config = transformers.LlamaConfig(**SETTINGS)
        transformers.LlamaForCausalLM(config).save_pretrained(name)
        for family in FAMILIES:
            origin = find_origin(Path(name), family)
            shape = origin.shape
            stage = family_of(shape)(shape, range(shape.n_layers), first=True, last=True)
            open_weights(origin, shape).read(whole_parts(stage))
            made.append(stage)
    return made


def microbatches() -> dict[str, MicroBatch]:
    """One of each layout."""
    offsets = tuple(accumulate(LENGTHS, initial=0))
    ids = tuple(range(len(LENGTHS)))
    return {"packed": PackedRow(ids, offsets[-1], offsets), "padded": PaddedRows((0, 1), 304)}


def passes(stage: StageOfFamily, batch: Any, mode: Recompute) -> tuple[float, int]:
    """Time in ms of both passes, and bytes that were kept between them."""
    account = ActivationMemory(stage.parameters())
    start_s = time.process_time()
    with account.recording(0):
        loss = WeightedTokens().loss(stage.run(None, batch, mode), batch.tokens)
    torch.autograd.backward(loss)
    return 1e3 * (time.process_time() - start_s), account.peak_bytes


def main(pair: Sequence[StageOfFamily]) -> None:
    """Prints a line per layout and mode of recomputation."""
    sys.stdout.write("layout  recompute  own ms  ratio  own MB  transformers MB\n")
    with tokens_on_disk([(0, n) for n in LENGTHS], SETTINGS["vocab_size"]) as tokens:
        for layout, microbatch in microbatches().items():
            batch = pair[0].collate(microbatch, tokens), pair[1].collate(microbatch, tokens)
            for mode in (Recompute.NONE, Recompute.FULL):
                rounds = [
                    [passes(*each, mode) for each in zip(pair, batch, strict=True)]
                    for _ in range(N_ROUNDS)
                ]
                own_ms = median(own for (own, _), _ in rounds)
                ratio = median(own / other for (own, _), (other, _) in rounds)
                own_mb, other_mb = (kept / 1e6 for _, kept in rounds[0])
                sys.stdout.write(
                    f"{layout}  {mode.text:9}  {own_ms:6.0f}  {ratio:5.2f}  {own_mb:6.1f}  "
                    f"{other_mb:6.1f}\n"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--stages", type=int, choices=(1, 2), default=1)
    parser.add_argument("--repeats", type=int, choices=range(1, 10), default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.predict:
        predict(arguments.repeats, arguments.stages, arguments.json)
    else:
        main(stages())
