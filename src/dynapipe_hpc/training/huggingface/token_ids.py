"""Tokens that begin and end what a model reads, for models that never were of Hugging Face."""

import json
from pathlib import Path

from dynapipe_hpc.data.replacing import writing
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.training.huggingface.files import CARRIED, CONFIG, GENERATION_CONFIG


def write_token_ids(run: Path, shape: ModelShape, start_id: int | None, eos_id: int) -> None:
    """Writes them where small files of Hugging Face are, unless a `config.json` is there, too.

    Args:
        run: Folder of a run.
        shape: The model.
        start_id: Token before the first of every sample; None if each has its own.
        eos_id: Token that ends every sample.

    Raises:
        RunError: The file system refuses.
    """
    folder = run / CARRIED
    if (folder / CONFIG).exists():
        return
    values = {"eos_token_id": eos_id}
    if shape.architecture.has_target_rows and start_id is not None:
        values |= {"decoder_start_token_id": start_id, "pad_token_id": start_id}
    elif start_id is not None:
        values |= {"bos_token_id": start_id}
    with writing(folder / GENERATION_CONFIG):
        folder.mkdir(exist_ok=True)
        (folder / GENERATION_CONFIG).write_text(f"{json.dumps(values, indent=2)}\n")
