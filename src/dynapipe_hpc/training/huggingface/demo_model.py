"""A small model with random weights, to try tuning with."""

import json
from pathlib import Path
from shutil import copyfile

import torch

from dynapipe_hpc.data.atomic_write import new_folder
from dynapipe_hpc.training.huggingface.import_export import save_tensors
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.tensors import SINGLE
from dynapipe_hpc.training.small_files import CONFIG

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
_SPREAD = 0.02


def write_demo_model(folder: Path, tokenizer: Path) -> None:
    """Writes a Llama of a million weights, with the files of a tokenizer, as a new folder."""
    drawn = torch.Generator().manual_seed(0)
    with new_folder(folder) as new:
        for file in tokenizer.iterdir():
            copyfile(file, new / file.name)
        (new / CONFIG).write_text(f"{json.dumps(_LLAMA, indent=2)}\n")
        origin = find_origin(new)
        maps = origin.mapping.tensors(origin.shape)
        shapes = {name: shape for each in maps for name, shape in each.stored_shapes.items()}
        tensors = {
            name: _SPREAD * torch.randn(shape, generator=drawn)
            if len(shape) > 1
            else torch.ones(shape)
            for name, shape in shapes.items()
        }
        save_tensors(new / SINGLE, tensors)
