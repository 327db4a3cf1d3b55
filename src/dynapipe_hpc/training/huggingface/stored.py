"""Tensors in the safetensors files of a folder, by their headers."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.training.huggingface.weight_files import weight_files


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """Tensor in a safetensors file.

    Attributes:
        name: Name of the tensor in the file.
        dtype: Type of its numbers, as the format calls it.
        shape: Shape.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, SafetensorsEntry]:
    """Tensors of a folder, by name; their numbers are not read.

    Raises:
        InputError: There are no safetensors files, or one cannot be used.
    """
    entries: dict[str, SafetensorsEntry] = {}
    for file in weight_files(folder):
        if reason := why_unreadable(file):
            raise InputError(f"{file}: cannot be read: {reason}")
        try:
            with safe_open(str(file), framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is not a dictionary
                    tensor = opened.get_slice(name)
                    if name in entries:
                        raise InputError(f"{file}: {name} is in {entries[name].file.name}, too")
                    shape = tuple(tensor.get_shape())
                    entries[name] = SafetensorsEntry(file, name, tensor.get_dtype(), shape)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file}: is not a complete safetensors file: {error}") from None
    return entries
