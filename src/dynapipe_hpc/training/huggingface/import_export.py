"""Import of a Hugging Face model as a checkpoint, and export as a Hugging Face folder."""

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.rope_scaling import rotation_tables, rotation_type
from dynapipe_hpc.data.atomic_write import new_folder, writing
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.training.checkpoint.folder import Description, check_room
from dynapipe_hpc.training.checkpoint.part_files import check_parts
from dynapipe_hpc.training.checkpoint.parts import CheckpointReader, StatePart, write_parts
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.huggingface.mapping import DTYPE_KEYS, Piece, TensorMap, Values
from dynapipe_hpc.training.huggingface.origin import (
    CHECKPOINTS,
    FACT,
    HASH_FACT,
    Origin,
    find_origin,
    hash_of_weights,
    mapping_for,
)
from dynapipe_hpc.training.huggingface.read_weights import check_copies, read_rows, row_blocks
from dynapipe_hpc.training.huggingface.tensors import INDEX, SINGLE, ModelTensors, open_tensors
from dynapipe_hpc.training.small_files import (
    ADAPTER_CONFIG,
    ADAPTER_MODEL,
    CARRIED,
    CONFIG,
    add_end_ids,
    copy_small_files,
    read_end_ids,
)

NOTHING_DONE = Counters(n_steps=0, n_updates=0, loss_scale=1.0, n_scaled_steps=0, n_skipped_steps=0)


def import_model(source: Path, output: Path) -> Origin:
    """Writes the weights of a Hugging Face folder as a checkpoint, one tensor at a time.

    Weights keep the type that they have in the folder, so that nothing is rounded.
    """
    origin = find_origin(source)
    if origin.description is not None:
        raise InputError(f"{source}: holds checkpoints already; name it in model.init_from")
    tensors = open_tensors(source, origin.mapping, origin.shape)
    check_copies(tensors)
    facts = {f"{FACT}{k}": v for k, v in origin.shape.sizes.items()}
    with new_folder(output) as partial:
        files = {each.file for each in tensors.tensors.values()}
        check_room(partial, sum(file.stat().st_size for file in files))
        copy_small_files(source, partial / CARRIED)
        checksum = write_parts(partial, 0, _parts(tensors))
        Description(0, NOTHING_DONE, facts, (checksum,)).write(partial)
    return origin


def _parts(tensors: ModelTensors) -> Iterator[StatePart]:
    for name, tensor_map in tensors.maps.items():
        shape, others = torch.Size(tensor_map.shape), [0] * (len(tensor_map.shape) - 1)
        if tensor_map.is_stack:
            for i in range(shape[0]):
                values = read_rows(tensors, name, i * shape[1], (i + 1) * shape[1])
                offsets = torch.Size([i, *others])
                yield StatePart(f"weight/{name}", shape, offsets, values.unsqueeze(0))
            continue
        for start, stop in row_blocks(tensor_map, 0, tensor_map.shape[0]):
            values = read_rows(tensors, name, start, stop)
            yield StatePart(f"weight/{name}", shape, torch.Size([start, *others]), values)


MAX_BYTES = 10**9
"""Maximum size of a file's tensors in bytes; all are in memory while the file is written."""
ReadRows = Callable[[str, int, int], Tensor]
"""Function that returns rows of an unsplit weight; takes its name, the first row and the end."""
_PREFIX = "base_model.model"  # of names in a model that `peft` has wrapped
_TASKS = {True: "SEQ_2_SEQ_LM", False: "CAUSAL_LM"}


class AdapterMap(NamedTuple):
    """Adapter of a weight, and the Hugging Face linear layer that the adapter belongs to."""

    name: str
    weight: str
    start: int
    n_rows: int
    module: str
    is_trained: bool


def adapter_maps(origin: Origin, lora: Lora) -> Iterator[AdapterMap]:
    """All linear layers of a model that may have adapters."""
    layers = origin.shape.linear_layers
    for weight in origin.mapping.tensors(origin.shape):
        layer = weight.name.removesuffix(".weight")
        for blocks in (blocks for end, blocks in layers.items() if layer.endswith(end)):
            start = 0
            for block, (source, n_rows) in zip(blocks, weight.sources.items(), strict=True):
                module, name = source.removesuffix(".weight"), f"{layer}.adapters.{block}"
                yield AdapterMap(name, weight.name, start, n_rows, module, lora.adapts(block))
                start += n_rows


def write_adapters(
    folder: Path, origin: Origin, lora: Lora, read: ReadRows, *, dtype: str, base: str | None
) -> None:
    """Writes adapters as files that `peft` loads on top of the model."""
    maps = list(adapter_maps(origin, lora))
    tensors = {
        f"{_PREFIX}.{each.module}.lora_{matrix.upper()}.weight": values.to(getattr(torch, dtype))
        for each in maps
        if each.is_trained
        for matrix, values in zip("ab", _matrices(each, lora, read), strict=True)
    }
    values = {
        "peft_type": "LORA",
        "task_type": _TASKS[origin.shape.has_target_rows],
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(_target_modules(maps)),
        "fan_in_fan_out": any(each.transposed for each in origin.mapping.tensors(origin.shape)),
        "bias": "none",
        "base_model_name_or_path": base,
        "inference_mode": True,
    }
    save_tensors(folder / ADAPTER_MODEL, tensors)
    with writing(folder):
        (folder / ADAPTER_CONFIG).write_text(f"{json.dumps(values, indent=2)}\n")


def merging(origin: Origin, lora: Lora, base: ReadRows, read: ReadRows) -> ReadRows:
    """Reader of the weights of a model, with its adapters added to the weights."""
    maps: dict[str, list[AdapterMap]] = {}
    for each in adapter_maps(origin, lora):
        if each.is_trained:
            maps.setdefault(each.weight, []).append(each)

    def merged(name: str, start: int, stop: int) -> Tensor:
        values = base(name, start, stop)
        for each in maps.get(name, ()):
            first, last = max(start, each.start), min(stop, each.start + each.n_rows)
            if first < last:
                a, b = _matrices(each, lora, read)
                rows = b[first - each.start : last - each.start]
                values = values.to(torch.promote_types(values.dtype, b.dtype))
                values[first - start : last - start] += lora.scale * (rows @ a)
        return values

    return merged


def _matrices(each: AdapterMap, lora: Lora, read: ReadRows) -> tuple[Tensor, Tensor]:
    return read(f"{each.name}.lora_a", 0, lora.rank), read(f"{each.name}.lora_b", 0, each.n_rows)


def _target_modules(maps: list[AdapterMap]) -> set[str]:
    others = {each.module.rpartition(".")[2] for each in maps if not each.is_trained}
    names = set()
    for each in maps:
        path, _, last = each.module.rpartition(".")
        if each.is_trained:
            names.add(last if last not in others else f"{path.rpartition('.')[2]}.{last}")
    return names


_ROWS = "max_position_embeddings"


class Exported(NamedTuple):
    """Export of a model."""

    origin: Origin
    dtype: str

    @property
    def remark(self) -> str:
        """Reason why newer versions of `transformers` do not load the model; empty if they do."""
        mapping, shape = self.origin.mapping, self.origin.shape
        if mapping.fits(shape):
            return ""
        other = mapping_for(shape)
        return (
            f"{mapping.architecture} of transformers refuses a hidden_size ({shape.hidden_size}) "
            f"that is not a multiple of its heads ({shape.n_heads}); {other.architecture} computes "
            f'the same: set "model_type": "{other.model_type}", "architectures": '
            f'["{other.architecture}"] and "sliding_window": null in config.json'
        )


def export_model(
    source: Path, output: Path, dtype: str | None = None, base: Path | None = None
) -> Exported:
    """Writes the weights of a checkpoint as a Hugging Face folder, one tensor at a time.

    If a model has adapters, its checkpoint holds only these. They are written in the format of
    `peft`, or added to the weights that they were trained on.

    `output`: The folder, which must not exist. `dtype`: Type of the written weights; None means the
    type in the model's `config.json`, or float32. `base`: Model with the weights that adapters are
    added to; None to write adapters alone.
    """
    origin = find_origin(source)
    if origin.description is None:
        raise InputError(f"{source}: is a Hugging Face model already; name a run or a checkpoint")
    if origin.shape.lora is None and base is not None:
        raise InputError(f"{source}: has no adapters to add to {base}; leave --base out")
    read = _reader(origin)
    with ThreadPoolExecutor(1, "checksums") as pool:
        # The entire checkpoint is compared with its checksums while it is copied.
        checking = pool.submit(check_parts, origin.folder, origin.description.part_checksums)
        with new_folder(output) as partial:
            if origin.shape.lora is None:
                written = write_model(partial, origin, read, dtype)
            elif base is None:
                written = dtype or "float32"
                lora, name = origin.shape.lora, _base_of(origin)
                write_adapters(partial, origin, lora, read, dtype=written, base=name)
            else:
                beside_adapters = _same_model(find_origin(base, origin.shape.family), origin)
                read_base = _reader(beside_adapters)
                merged = merging(origin, origin.shape.lora, read_base, read)
                written = write_model(partial, beside_adapters, merged, dtype)
                if origin.small_files is not None:
                    add_end_ids(partial, read_end_ids(origin.small_files))
            checking.result()
    return Exported(origin, written)


def write_model(folder: Path, origin: Origin, read: ReadRows, dtype: str | None = None) -> str:
    """Writes a model, with the weights that `read` returns, into an existing folder."""
    dtype = dtype or origin.settings.dtype or "float32"
    write_tensors(folder, origin.mapping.tensors(origin.shape), read, getattr(torch, dtype))
    if origin.small_files is not None:
        copy_small_files(origin.small_files, folder)
    values = {
        "architectures": [origin.mapping.architecture],
        **origin.settings.values,
        **origin.mapping.dropout(origin.shape),
        **_longer_rows(origin),
        DTYPE_KEYS["torch_dtype" in origin.settings.values]: dtype,
    }
    if values != origin.settings.values:
        with writing(folder / CONFIG):
            (folder / CONFIG).write_text(f"{json.dumps(values, indent=2)}\n")
    return dtype


def _base_of(origin: Origin) -> str | None:
    name, path = origin.settings.get("_name_or_path"), ""
    config = origin.folder.parent.parent / "config.toml"
    if origin.folder.parent.name == CHECKPOINTS and config.exists():
        try:
            path = str(tomllib.loads(read_text(config)).get("model", {}).get("init_from", ""))
        except (ValueError, AttributeError) as error:
            raise InputError(f"{config}: is not the configuration of a run: {error}") from None
    if path and (Path(path) / CONFIG).exists():
        return str(Path(path).resolve())
    return name or (path if path and not Path(path).exists() else None)


def _longer_rows(origin: Origin) -> Values:
    """Length of the run's longest rows for `config.json`, unless angles would depend on it."""
    values = origin.settings.values
    given, trained = values.get(_ROWS), origin.shape.max_tokens
    if type(given) is not int or given >= trained:
        return {}
    for table in rotation_tables(values):
        free = ("default", "linear", *(("llama3",) if table.get(f"original_{_ROWS}") else ()))
        if rotation_type(table) not in free:
            return {}
    return {_ROWS: trained}


def _reader(origin: Origin) -> ReadRows:
    if origin.description is not None:
        reader = CheckpointReader(origin.folder, len(origin.description.part_checksums))
        return lambda name, start, stop: reader.rows(f"weight/{name}", start, stop)
    tensors = open_tensors(origin.folder, origin.mapping, origin.shape)

    def read(name: str, start: int, stop: int) -> Tensor:
        tensor_map = tensors.maps[name]
        _, *rest = tensor_map.shape
        n = rest[0] if tensor_map.is_stack else 1
        return read_rows(tensors, name, n * start, n * stop).view(stop - start, *rest)

    return read


def _same_model(base: Origin, adapted: Origin) -> Origin:
    shapes, expected = (
        {each.name: each.shape for each in origin.mapping.tensors(origin.shape)}
        for origin in (base, adapted)
    )
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            raise InputError(
                f"{base.folder}: is not the model of {adapted.folder}: {name} has the shape "
                f"{shapes.get(name)}, not {shape}; name the one that the adapters were trained on"
            )
    facts = adapted.description.facts if adapted.description else {}
    if HASH_FACT in facts and hash_of_weights(base) != facts[HASH_FACT]:
        raise InputError(
            f"{base.folder}: these are not the weights that the adapters of {adapted.folder} were "
            "trained on, or they are split into other files; name the model with which that run "
            "began (model.init_from)"
        )
    # A family without dropout has no such key.
    trained = adapted.shape.model_dump(include={"dropout", "max_tokens"})
    return replace(base, shape=base.shape.model_copy(update=trained))


def write_tensors(
    folder: Path,
    maps: Iterable[TensorMap],
    read: ReadRows,
    dtype: torch.dtype,
    *,
    most_bytes: int = MAX_BYTES,
) -> None:
    """Writes all weights of a model into one file, or into several with an index."""
    files: list[dict[str, tuple[TensorMap, Piece]]] = [{}]
    held = total = 0
    for tensor_map in maps:
        for piece in tensor_map.pieces(0, sum(tensor_map.sources.values())):
            n_bytes = prod(tensor_map.stored_shapes[piece.source]) * dtype.itemsize
            if files[-1] and held + n_bytes > most_bytes:
                files.append({})
                held = 0
            files[-1][piece.source] = (tensor_map, piece)
            held += n_bytes
            total += n_bytes
    names = [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    for name, stored in zip(names if len(files) > 1 else [SINGLE], files, strict=True):
        save_tensors(folder / name, {k: _read(*at, read, dtype) for k, at in stored.items()})
    if len(files) > 1:
        file_of = {source: name for name, file in zip(names, files, strict=True) for source in file}
        index = {"metadata": {"total_size": total}, "weight_map": file_of}
        with writing(folder / INDEX):
            (folder / INDEX).write_text(f"{json.dumps(index, indent=2, sort_keys=True)}\n")


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as a safetensors file, and waits until it is on disk."""
    with writing(path):
        try:
            save_file(dict(tensors), path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise RunError(f"{path}: cannot be written: {error}") from error
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _read(tensor_map: TensorMap, piece: Piece, read: ReadRows, dtype: torch.dtype) -> Tensor:
    """A tensor, filled some rows at a time unless it is stored as columns."""
    values = torch.empty(tensor_map.stored_shapes[piece.source], dtype=dtype)
    rows = values.T if tensor_map.transposed else values
    name, start = tensor_map.name, piece.at
    for first, end in row_blocks(tensor_map.as_matrix, start, start + piece.n_rows):
        if tensor_map.is_stack:
            i, row = divmod(first, tensor_map.shape[1])
            block = read(name, i, i + 1)[0, row : row + end - first]
        else:
            block = read(name, first, end)
        rows[first - start : end - start] = block
    return values
