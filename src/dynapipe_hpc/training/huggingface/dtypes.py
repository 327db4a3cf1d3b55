"""Types of weights, as files and settings of Hugging Face call them."""

from collections.abc import Mapping

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.huggingface.settings import Settings

DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}
"""Types of numbers that are read, as safetensors and torch call them."""
DTYPE_KEYS = ("dtype", "torch_dtype")
"""Setting with the type, in newer and older versions of `transformers`."""


def configured_dtype(settings: Settings) -> str | None:
    """The type that settings name; None if they name none, or leave it to the files.

    Raises:
        InputError: It is not a type that is read.
    """
    key = next((key for key in DTYPE_KEYS if settings.get(key) is not None), None)
    value = settings.get(key) if key else "auto"
    if value == "auto":
        return None
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    if name not in DTYPES.values():
        raise InputError(
            f"{settings.path}: '{key}' is {quoted(value)}, which is not supported, only "
            f"{', '.join(DTYPES.values())}; enter the type of the weights there"
        )
    return name
