"""What does the layout of a micro-batch cost, on one thread of this machine's processor?

    python benchmarks/packed_rows.py [--tokens 8192] [--longest 2048] [--dtype float32]

A GPT of width 256 with four layers, forward and backward, documents of lognormal lengths: laid end
to end with attention within each (packed), as rows of up to four padded micro-batches of like
lengths (padded), and packed into rows as long as the longest may be, with attention over the whole
row (dense). Times are medians over rounds, in which the layouts take turns.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from statistics import median

import numpy as np
import torch
from torch.autograd import backward

from dynapipe_hpc.architecture.gpt import GptShape
from dynapipe_hpc.data.microbatch import Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.gpt import GptStage
from dynapipe_hpc.models.tokens.iteration_tokens import IntegerArray, IterationTokens
from measured import print_table

MOST_PADDED = 4
START_ID = 0


@dataclass(frozen=True)
class Zeros:
    """A reader of samples that consist of the token 0: times do not depend on tokens."""

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[IntegerArray, IntegerArray]:
        """See `TokenReader`."""
        del sample_id
        return np.zeros(input_tokens, np.int64), np.zeros(target_tokens, np.int64)

    def first_token(self, sample_id: int) -> int:
        """See `TokenReader`."""
        return sample_id


def documents(n_tokens: int, longest: int, seed: int) -> list[Sample]:
    """Samples of lognormal lengths, median an eighth of the longest, that fill a row."""
    random = np.random.default_rng(seed)
    lengths: list[int] = []
    while (left := n_tokens - sum(lengths)) > 0:
        lengths.append(min(left, longest, 1 + int(random.lognormal(np.log(longest / 8), 1.0))))
    return [Sample(i, n // 2, n - n // 2) for i, n in enumerate(sorted(lengths))]


def packed(samples: Sequence[Sample]) -> list[MicroBatch]:
    """All of them in one row, with attention within each."""
    offsets = tuple(accumulate((s.tokens for s in samples), initial=0))
    ids = tuple(s.sample_id for s in samples)
    return [MicroBatch((ids,), offsets[-1], layout=Layout.PACKED, offsets=offsets)]


def padded(samples: Sequence[Sample]) -> list[MicroBatch]:
    """Up to four micro-batches of neighbours by length, with the least padding."""
    cuts = (
        (0, *inner, len(samples)) for inner in combinations(range(1, len(samples)), MOST_PADDED - 1)
    )
    best = min(cuts, key=lambda cut: sum(samples[b - 1].tokens * (b - a) for a, b in pairwise(cut)))
    return [
        MicroBatch(tuple((s.sample_id,) for s in samples[a:b]), samples[b - 1].tokens)
        for a, b in pairwise(best)
    ]


def dense(samples: Sequence[Sample], row_tokens: int) -> list[MicroBatch]:
    """Rows of one length, each sample in the first that has room, longest samples first."""
    rows: list[list[Sample]] = []
    for sample in reversed(samples):
        room = (r for r in rows if sum(s.tokens for s in r) + sample.tokens <= row_tokens)
        row = next(room, None)
        rows.append([sample]) if row is None else row.append(sample)
    ids = tuple(tuple(s.sample_id for s in row) for row in rows)
    return [MicroBatch(ids, row_tokens, layout=Layout.DENSE)]


def measured(
    stage: GptStage, layouts: dict[str, list[MicroBatch]], tokens: IterationTokens, n_rounds: int
) -> Iterator[tuple[str, float]]:
    """Median time of a forward and a backward pass over all micro-batches of each layout, in ms."""
    times: dict[str, list[float]] = {name: [] for name in layouts}
    for _ in range(1 + n_rounds):  # the first warms up
        for name, microbatches in layouts.items():
            started_s = time.perf_counter()
            for microbatch in microbatches:
                batch = stage.collate(microbatch, tokens)
                backward(stage.run(None, batch, Recompute.NONE))
            times[name].append(1e3 * (time.perf_counter() - started_s))
    for name, found in times.items():
        yield name, median(found[1:])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--longest", type=int, default=2048)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = GptShape(
        n_layers=4,
        hidden_size=256,
        n_heads=4,
        ffn_size=1024,
        vocab_size=512,
        max_tokens=args.longest,
    )
    samples = documents(args.tokens, args.longest, args.seed)
    weights = dict.fromkeys(range(len(samples)), 1.0)
    tokens = IterationTokens(dict(enumerate(samples)), weights, Zeros(), START_ID)
    stage = GptStage(shape, range(4), first=True, last=True, dtype=getattr(torch, args.dtype))
    layouts = {
        "packed": packed(samples),
        "padded": padded(samples),
        "dense": dense(samples, args.longest),
    }
    print(f"{len(samples)} documents of {samples[0].tokens} to {samples[-1].tokens} tokens")
    rows = {
        name: {
            "tokens computed": sum(m.padded_tokens for m in layouts[name]),
            "ms": ms,
            "us per real token": 1e3 * ms / args.tokens,
        }
        for name, ms in measured(stage, layouts, tokens, args.rounds)
    }
    print_table(rows, {"tokens computed": "{}", "ms": "{:.0f}", "us per real token": "{:.1f}"})


if __name__ == "__main__":
    main()
