"""The run folder, if it exists: whether a run could continue or begin there."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.doctor.case import Case
from dynapipe_hpc.experiment.doctor.finding import Finding, Level
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.lock.run_lock import writer_of
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
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.checkpoint.description import Facts
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.huggingface.hash_of_weights import FACT


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
    output: Path, files: ExperimentFiles, facts: Facts, point: ResumePoint | None
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
        passes = reference_passes(files, str(facts_of_start(facts, point)[FACT]), output)
        for reference in passes:
            if reference.missing(reference.file.read()):
                raise reference.lack_error()
        paths = ", ".join(str(reference.file.source) for reference in passes)
        yield Finding("reference", f"of the model that the run began with, in {paths}")
