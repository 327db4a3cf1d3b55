"""Hash that tells the weights of one model from those of another, without reading all of them."""

from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import open_input
from dynapipe_hpc.training.checkpoint.files import new_checksum
from dynapipe_hpc.training.huggingface.origin import Origin
from dynapipe_hpc.training.huggingface.weight_files import weight_files

N_BLOCKS, BLOCK_BYTES = 64, 1 << 16
FACT = "the hash of the weights of model.init_from"
"""Key of the hash among the facts of a checkpoint of adapters."""


def hash_of_weights(origin: Origin) -> str:
    """Hash of the checksums of a checkpoint, or of samples of the files of a Hugging Face folder.

    Sampled of every file of tensors are its size, its beginning, where the tensors are listed, and
    blocks that are spread evenly over it. Models that differ do so in nearly all numbers.
    """
    hasher = new_checksum()
    if origin.description is not None:
        for checksum in origin.description.part_checksums:
            hasher.update(checksum.encode())
        return hasher.hexdigest()
    for path in sorted(weight_files(origin.folder)):
        hasher.update(path.name.encode())
        for block in _blocks(path):
            hasher.update(block)
    return hasher.hexdigest()


def _blocks(path: Path) -> list[bytes]:
    try:
        n_bytes = path.stat().st_size
        step = max(BLOCK_BYTES, n_bytes // N_BLOCKS)
        with open_input(path) as file:
            blocks = [n_bytes.to_bytes(8, "little")]
            for start in range(0, n_bytes, step):
                file.seek(start)
                blocks.append(file.read(BLOCK_BYTES))
            return blocks
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
