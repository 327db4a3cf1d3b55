"""Times and kept memory of a Llama by its own family, and through `transformers`.

    python benchmarks/any_decoder.py

A Llama of four layers of width 512 on one processor core in float32, with random weights: forward
and backward passes of the whole model, by turns. "ratio" is the time of its own family over that of
`transformers`, the median of nine; "MB" is what is kept for backward, of either. Needs the extra
[huggingface]. It takes about four minutes.
"""

import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, PaddedRows, Recompute
from dynapipe_hpc.experiment.profile.stack import tokens_on_disk
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.activation_memory import ActivationMemory
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import read_weights
from dynapipe_hpc.training.objective import WeightedTokens

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
            read_weights(origin, shape, whole_parts(stage))
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
    torch.set_num_threads(1)
    main(stages())
