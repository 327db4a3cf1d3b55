"""Sizes of the model that `model.init_from` names, where the [model] table leaves them out."""

from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.experiment.config_error import Source
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin
from dynapipe_hpc.training.huggingface.pages import has_another_family


def sizes_of_origin(model: Any) -> Source | None:
    """The values that a [model] table may leave out; None if it names no model to start from."""
    if not isinstance(model, dict):
        return None
    path = model.get("init_from")
    if not isinstance(path, str) or not path:
        return None
    origin = find_origin(Path(path), model.get("family"))
    if origin.shape.lora is not None:
        raise InputError(
            f"{path}: has adapters beside another model; merge them into it (dynapipe-hpc export "
            f"{path} -o FOLDER --base MODEL), and name FOLDER"
        )
    if differences := _differences(model, origin):
        raise InputError(
            f"{path}: is another model: {'; '.join(differences)}; leave these keys of [model] out, "
            "and they are taken from there"
        )
    model["init_from"] = str(origin.folder)
    return Source(f"{origin.folder}:", {"model": origin.values})


def lacking_origin_error(objective: str) -> InputError:
    """The error that preferences are to be trained without a model to begin with."""
    return InputError(
        f'training.objective is "{objective}", but there is no model.init_from, whose weights are '
        "the reference; name the model to begin with"
    )


def more_rows(n_rows: int) -> str:
    """The way to a model of Hugging Face whose embedding has more rows, for messages."""
    return (
        f"add rows with transformers: model.resize_token_embeddings({n_rows}), then "
        "save_pretrained in a new folder, together with the tokenizer, and name that in "
        "model.init_from"
    )


def _differences(model: dict[str, Any], origin: Origin) -> list[str]:
    differences = []
    known = {**origin.shape.sizes, **origin.shape.fingerprint}  # as if the table left nothing out
    for key in model.keys() & known.keys() - {"lora", "dropout"}:
        given, stored = model[key], known[key]
        if key == "max_tokens" and origin.longest is not None:
            if isinstance(given, int) and given > origin.longest:
                remedy = 'family = "transformers" computes longer rows'
                advice = f" ({remedy})" if has_another_family(origin.page, origin.settings) else ""
                most = origin.longest_text
                differences.append(f"{key} may be at most {most}, not {given}{advice}")
        elif key == "vocab_size" and isinstance(given, int) and given > stored:
            differences.append(f"vocab_size is {stored} there, not {given} ({more_rows(given)})")
        elif given != stored:
            differences.append(f"{key} is {quoted(stored)} there, not {quoted(given)}")
    return sorted(differences)
