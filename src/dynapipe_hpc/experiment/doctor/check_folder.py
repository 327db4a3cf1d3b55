"""The run folder: whether it can be written, is seen by all hosts, and holds a run."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.reference_pass import reference_passes
from dynapipe_hpc.experiment.run.loss_history import LossHistory, is_complete
from dynapipe_hpc.experiment.run.resume import (
    ResumePoint,
    facts_of_run,
    facts_of_start,
    n_repeatable,
    newest_undamaged,
    together,
)
from dynapipe_hpc.experiment.run_lock import writer_of
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder, Facts
from dynapipe_hpc.training.huggingface.origin import HASH_FACT

_BLOCK = bytes(1 << 20)
_LITTLE_BYTES = 1e9


def check_folder(case: Case) -> Iterator[Finding]:
    """Writes and renames a file, and looks for it from every rank (collective)."""
    place, folder, written = _existing(case.folder), None, Path()
    if case.job.is_first:
        try:
            folder = Path(mkdtemp(prefix=".dynapipe-hpc-", dir=place))
            yield _written(folder, place)
            written = folder
        except OSError as error:
            remedy = "name another folder with -o, or change its permissions"
            yield Finding("writing", f"{place}: {error.strerror}; {remedy}", Level.PROBLEM)
    # Outside of `try`: ranks that meet more often than others wait forever.
    written = case.job.broadcast(written)
    if not case.job.is_first:
        yield from _check_is_visible(written)
    case.job.barrier()
    if folder is not None:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            text = f"{folder}: cannot be removed: {error.strerror or error}; remove it"
            yield Finding("cleaning up", text, Level.WARNING)
    if case.job.is_first and written != Path():
        yield _free(place)
        yield from _lock(case.folder)


def _existing(folder: Path) -> Path:
    folder = folder.resolve()
    return next(each for each in (folder, *folder.parents) if each.exists())


def _written(folder: Path, place: Path) -> Finding:
    started_s = time.perf_counter()
    with (folder / "beside").open("wb") as file:
        file.write(_BLOCK)
        file.flush()
        os.fsync(file.fileno())
    (folder / "beside").replace(folder / "complete")
    took_ms = 1e3 * (time.perf_counter() - started_s)
    return Finding(
        "writing", f"{place}: 1 MiB written, synchronised and renamed in {took_ms:.1f} ms"
    )


def _check_is_visible(folder: Path) -> Iterator[Finding]:
    if folder != Path() and not (folder / "complete").exists():
        yield Finding(
            f"seen from {platform.node()}",
            f"the file that the first rank wrote to {folder.parent} is not visible here; runs need "
            "a file system that all hosts share",
            Level.PROBLEM,
        )


def _lock(folder: Path) -> Iterator[Finding]:
    try:
        writer = writer_of(folder)
    except InputError as error:
        yield Finding("lock", str(error), Level.PROBLEM)
        return
    if writer is not None:
        # A holder on another host may be gone.
        level = Level.PROBLEM if writer.is_alive() else Level.WARNING
        text = (
            f"{folder}: locked by another run, {writer}; wait for its end, or name another folder"
        )
        yield Finding("lock", text, level)


def _free(place: Path) -> Finding:
    free_bytes = shutil.disk_usage(place).free
    text = f"{free_bytes / 1e9:.1f} GB free"
    if free_bytes >= _LITTLE_BYTES:
        return Finding("space", text)
    return Finding(
        "space", f"{text}; a run may fill the disk: free some space first", Level.WARNING
    )


def check_earlier_run(case: Case) -> Iterator[Finding]:
    """The state of the run folder (collective: all ranks share the reading).

    Nothing in the folder is changed. A folder that another run is writing is not read: the section
    on the folder reports its lock.
    """
    if not all(case.job.all_gather_int(int(case.files is not None))):
        return
    files, output = case.files, case.output
    if files is None or output is None or not case.job.broadcast(_is_free(output)):
        return
    try:
        facts = together(case.job, partial(facts_of_run, files))
        folder = CheckpointFolder(output / "checkpoints", files.config.checkpoint)
        point = newest_undamaged(case.job, folder, facts)
        findings = list(_described(output, files, facts, point)) if case.job.is_first else []
    except (InputError, OSError) as error:
        findings = [Finding("start", str(error), Level.PROBLEM)] if case.job.is_first else []
    yield from findings


def _is_free(output: Path) -> bool:
    try:
        return output.is_dir() and writer_of(output) is None
    except InputError:  # reported by the section on the folder
        return False


def _described(
    output: Path, files: Experiment, facts: Facts, point: ResumePoint | None
) -> Iterator[Finding]:
    if point is None:
        RunFolder.check_new(output, n_repeatable(output, files.config))
        yield Finding("start", f"{output}: a new run starts here: there is none to continue")
        return
    for problem in point.damaged.values():
        yield Finding("left out", problem, Level.WARNING)
    n_done, n_iterations = point.description.n_done, files.training.n_iterations
    table = files.config.evaluation
    history = LossHistory.read(output, table, n_done) if table else None
    if is_complete(n_done, n_iterations, history):
        done = (
            f"training has ended early: {history.describe()}"
            if history and history.is_over
            else f"all {n_iterations} iterations are done"
        )
        yield Finding("start", f"{output}: {done}; a run would end immediately")
        return
    RunFolder.check_resumable(output)
    yield Finding("start", f"{output}: continues after {n_done} iterations")
    if files.config.training.preference_loss:
        passes = reference_passes(files, str(facts_of_start(facts, point)[HASH_FACT]), output)
        for reference in passes:
            if reference.missing(reference.file.read()):
                raise reference.lack_error()
        paths = ", ".join(str(reference.file.source) for reference in passes)
        yield Finding("reference", f"of the model that the run began with, in {paths}")
