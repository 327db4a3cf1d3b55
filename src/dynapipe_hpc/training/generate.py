"""Generation of text by a complete model in one process, to see what it has learned."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.text.recipe import prompt_tokens
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.documents import Documents, SlicedRow
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.packed_attention import KeyValueCache
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import load_model
from dynapipe_hpc.training.small_files import read_end_ids


def logits_of(
    stage: StageOfFamily,
    tokens: Sequence[int],
    source: Sequence[int] | None = None,
    kv_cache: KeyValueCache | None = None,
) -> Tensor:
    """Logits after each token, shape (tokens, vocabulary).

    `tokens`: Ids that a decoder reads, the start token included. `source`: Ids that an encoder
    reads. `kv_cache`: Keys and values of earlier tokens; those of `tokens` are added.
    """
    batch = _batch_of(tokens)
    if source is not None:
        batch = replace(batch, source=_batch_of(source or tokens[:1]))
    if kv_cache is not None:
        row = Documents.from_lengths([len(tokens)])
        segments = SlicedRow.from_documents(row, kv_cache.n_tokens)
        batch = replace(batch, segments=segments, kv_cache=kv_cache)
        kv_cache.n_tokens += len(tokens)
    with torch.no_grad():
        return stage.run(None, batch, Recompute.NONE)[0]


def _batch_of(tokens: Sequence[int]) -> Batch:
    return Batch((1, len(tokens)), tokens=torch.tensor([tokens]))


Choose = Callable[[Tensor], int]
"""Function that chooses a token id from the logits of all ids."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Choice of the next token.

    Source of `top_p`: Holtzman et al., "The Curious Case of Neural Text Degeneration",
    arXiv:1904.09751.
    """

    temperature: float = 0.0  # divisor of logits; 0 for the likeliest token
    top_p: float = 1.0  # total probability of the likeliest tokens to choose from
    seed: int = 0

    def chooser(self) -> Choose:
        """Function that chooses one token after another."""
        generator = torch.Generator().manual_seed(self.seed)

        def choose(logits: Tensor) -> int:
            if self.temperature == 0:
                return int(logits.argmax())
            shares, ids = (logits.double() / self.temperature).softmax(-1).sort(descending=True)
            shares[shares.cumsum(-1) - shares >= self.top_p] = 0  # never the likeliest token's
            return int(ids[torch.multinomial(shares, 1, generator=generator)])

        return choose


def generate(
    path: Path,
    prompt: str,
    n_tokens: int,
    sampling: Sampling,
    *,
    tokenizer_path: Path | None = None,
    chat: bool = False,
) -> str:
    """Text that a model writes after a prompt, or with `chat` as the assistant's answer to it."""
    origin = find_origin(path)
    if origin.shape.lora is not None:
        raise InputError(
            f"{path}: holds adapters of another model; export them with --base, and name the export"
        )
    folder = origin.small_files
    if (tokenizer_path := tokenizer_path or folder) is None:
        raise InputError(f"{path}: has no tokenizer files; name them: --tokenizer PATH")
    tokenizer, tokens = prompt_tokens(prompt, tokenizer_path, chat=chat)
    if origin.shape.has_target_rows:
        ends = [] if tokenizer.input_end_id is None else [tokenizer.input_end_id]
        source, tokens = [*tokens, *ends], []
    else:
        source = None
    if tokenizer.start_id is not None:
        tokens = [tokenizer.start_id, *tokens]
    if not tokens:
        raise InputError("--prompt is empty, and the tokenizer has no start token; write some text")
    n_rows = origin.shape.vocab_size
    if (largest := max([*tokens, *(source or ())])) >= n_rows:
        raise InputError(
            f"--prompt has token {largest} of the tokenizer {tokenizer.files.name}, but the "
            f"embedding of {path} has {n_rows} rows; name the tokenizer that it was trained with: "
            "--tokenizer"
        )
    longest = origin.shape.max_tokens
    if max(len(tokens), len(source or ())) > longest:
        raise InputError(f"--prompt exceeds {longest} tokens (model.max_tokens); shorten it")
    stage = load_model(origin)
    n_tokens = min(n_tokens, longest + 1 - len(tokens))
    end_ids = {tokenizer.eos_id, *(read_end_ids(folder) if folder else ())}
    written = continued(stage, tokens, source, sampling.chooser(), end_ids=end_ids)
    return tokenizer.decode([token for _, token in zip(range(n_tokens), written, strict=False)])


def continued(
    stage: StageOfFamily,
    tokens: Sequence[int],
    source: Sequence[int] | None,
    choose: Choose,
    *,
    end_ids: Collection[int],
) -> Iterator[int]:
    """Tokens that a model writes, one after another, until it writes one of `end_ids`.

    A model that runs slices keeps keys and values; in other models, every token needs a pass over
    all tokens before it. `source`: Tokens that an encoder reads; None for a model without one.
    """
    read, kv_cache = list(tokens), KeyValueCache() if stage.has_kv_cache else None
    while (token := choose(logits_of(stage, read, source, kv_cache)[-1])) not in end_ids:
        yield token
        read = [*read, token] if kv_cache is None else [token]
