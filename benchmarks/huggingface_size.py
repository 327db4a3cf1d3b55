"""Time and memory of importing and exporting large Hugging Face models.

    python benchmarks/huggingface_size.py FOLDER [--gigabytes 20] [--json OUT.json]

Makes a Llama of that size in FOLDER (bfloat16, files of 5 GB), which needs twice the size on disk,
copies its files until they are on disk, imports it, and exports the import. Each runs in a process
of its own, whose largest resident memory is told, mapped files included. Everything is deleted
afterwards.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dynapipe_hpc.architecture.llama import LlamaShape
from dynapipe_hpc.data.atomic_write import sync_folder
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.training.huggingface.export_model import export_model
from dynapipe_hpc.training.huggingface.import_model import import_model
from dynapipe_hpc.training.huggingface.pages import page_for
from dynapipe_hpc.training.huggingface.write_tensors import write_tensors

WIDTH, INNER, VOCABULARY, BYTES = 4096, 14336, 128256, 2
LAYER_NUMBERS = 2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 4 + 3 * WIDTH * INNER


def make(folder: Path, n_bytes: int) -> None:
    """Writes a model whose numbers are random."""
    n_layers = max(1, round((n_bytes / BYTES - 2 * VOCABULARY * WIDTH) / LAYER_NUMBERS))
    shape = LlamaShape(
        n_layers=n_layers,
        hidden_size=WIDTH,
        n_heads=32,
        n_kv_heads=8,
        ffn_size=INNER,
        vocab_size=VOCABULARY,
        max_tokens=8192,
    )
    page = page_for(shape)
    found = {each.name: each.shape for each in page.tensors(shape)}

    def read(name: str, start: int, stop: int) -> Tensor:
        return torch.randn((stop - start, *found[name][1:]), dtype=torch.bfloat16)

    folder.mkdir()
    write_tensors(folder, page.tensors(shape), read, torch.bfloat16)
    config = {"model_type": page.model_type, "dtype": "bfloat16", **page.config(shape)}
    (folder / "config.json").write_text(json.dumps(config))


def copy(source: Path, target: Path) -> None:
    """Copies all files, and waits until they are on disk."""
    shutil.copytree(source, target)
    for path in target.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(target)


def forget(folder: Path) -> None:
    """Lets the system forget what files hold, so that all that is measured reads from disk."""
    os.sync()
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measured(do: Callable[[Path, Path], object], source: Path, target: Path) -> dict[str, float]:
    """Time and memory of a process that does something."""
    forget(source)
    process = get_context("spawn").Process(target=_report, args=(do, source, target))
    start_s = time.perf_counter()
    process.start()
    process.join()
    took_s = time.perf_counter() - start_s
    if process.exitcode:
        sys.exit(f"{do.__name__} failed")
    peak = int(target.with_suffix(".peak").read_text())
    sys.stdout.write(f"{do.__name__}: {took_s:.1f} s, {peak / 1e9:.2f} GB\n")
    return {"s": took_s, "peak_bytes": peak}


def _report(do: Callable[[Path, Path], object], source: Path, target: Path) -> None:
    do(source, target)
    # `getrusage` would count what the process that made this one held, too.
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    target.with_suffix(".peak").write_text(str(peak))


def main() -> None:
    """Measures, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    work = arguments.folder / "huggingface_size"
    work.mkdir()
    results: dict[str, Any] = {}
    try:
        make(work / "theirs", int(arguments.gigabytes * 1e9))
        files = (work / "theirs").iterdir()
        results["bytes"] = sum(path.stat().st_size for path in files)
        results["copy"] = measured(copy, work / "theirs", work / "copied")
        shutil.rmtree(work / "copied")
        results["import"] = measured(import_model, work / "theirs", work / "ours")
        shutil.rmtree(work / "theirs")
        results["export"] = measured(export_model, work / "ours", work / "back")
    finally:
        shutil.rmtree(work)
    for name in ("import", "export"):
        results[name]["copies"] = results[name]["s"] / results["copy"]["s"]
        sys.stdout.write(f"{name}: {results[name]['copies']:.2f} times the copy\n")
    results["load_average"] = os.getloadavg()[0]
    if arguments.json:
        text = json.dumps({"machine": machine_facts(1), "results": results}, indent=1)
        arguments.json.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
