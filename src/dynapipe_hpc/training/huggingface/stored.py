"""Tensors in the safetensors files of a folder, by their headers."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.training.huggingface.files import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Tensor in a safetensors file.

    Attributes:
        file: The file.
        name: Name of the tensor in the file.
        dtype: Type of its numbers, as the format calls it.
        shape: Shape.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Tensors of a folder, by name; their numbers are not read.

    Raises:
        InputError: There are no safetensors files, or one cannot be used.
    """
    found: dict[str, StoredTensor] = {}
    for file in _files(folder):
        if reason := why_unreadable(file):
            raise InputError(f"{file}: cannot be read: {reason}")
        try:
            with safe_open(str(file), framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is not a dictionary
                    tensor = opened.get_slice(name)
                    if name in found:
                        raise InputError(f"{file}: {name} is in {found[name].file.name}, too")
                    shape = tuple(tensor.get_shape())
                    found[name] = StoredTensor(file, name, tensor.get_dtype(), shape)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file}: is not a complete safetensors file: {error}") from None
    return found


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        names = read_object(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise InputError(f"{index}: has no 'weight_map' of tensors to files")
        for name in names.values():
            if not isinstance(name, str) or Path(name).name != name:
                raise InputError(f"{index}: {quoted(name)} is not the name of a file beside it")
        return [folder / name for name in dict.fromkeys(names.values())]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if pickled := sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]):
        raise InputError(
            f"{folder}: has its weights in {pickled[0].name} only, a pickle file, which is not "
            "read, as it may run any program; where you trust it, convert it with transformers: "
            "AutoModel...from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    raise InputError(f"{folder}: has neither {SINGLE} nor {INDEX}; name a folder with weights")
