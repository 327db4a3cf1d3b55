"""Fine-tunes a model on files of chats, by running the other verbs in order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

import tomli_w

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.preprocess import PreprocessOptions
from dynapipe_hpc.data.text.recipe import Recipe, format_of_sources, recipe_of
from dynapipe_hpc.data.text.records import PAIR_FIELDS
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import load_tokenizer
from dynapipe_hpc.experiment.checks import check_torch
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.preprocess_job import preprocess_together
from dynapipe_hpc.experiment.run.start import start_experiment
from dynapipe_hpc.experiment.study.propose import Wish, propose
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.html import write_page
from dynapipe_hpc.report.records import duration
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.huggingface.origin import find_origin

OnProgress = Callable[[float | None], None]
ProgressOf = Callable[[str], AbstractContextManager[OnProgress]]
WRONG_INPUT = 2
_LEAST = """\
[data]
dataset = "x"
max_tokens = 8
tokens_per_batch = 1000000000000
[cluster]
device_memory_bytes = 1
[planner.cost]
kind = "analytic"
[planner.batch]
rule = "dynamic"
[training]
epochs = 3
[model]
{model}
"""


@dataclass(frozen=True, slots=True)
class Finetune:
    """A wish to tune a model, and the paths of its results."""

    model: Path
    sources: Sequence[Path]
    output: Path  # folder of all results, new or left by the same wish
    memory: str | None = None  # memory that a rank may use; None to ask the device
    lora: int | None = None  # rank of adapters; None to train all weights
    sets: Sequence[str] = ()
    measures: bool = True

    @property
    def is_dataset(self) -> bool:
        return len(self.sources) == 1 and self.sources[0].suffix == ".h5"

    @property
    def data(self) -> Path:
        return self.sources[0] if self.is_dataset else self.output / "data.h5"

    @property
    def config(self) -> Path:
        return self.output / "config.toml"

    @property
    def costs(self) -> Path:
        return self.output / "costs.h5"

    @property
    def run(self) -> Path:
        return self.output / "run"

    @property
    def overrides(self) -> list[str]:
        """All values of the configuration that the command line gives, in the form of `--set`."""
        lora = [f"model.lora.rank={self.lora}"] if self.lora else []
        memory = [f"cluster.device_memory_bytes={self.memory}"] if self.memory else []
        return [*lora, *memory, *self.sets]


def finetune(job: Job, wish: Finetune, progress_of: ProgressOf) -> int:
    """Makes dataset, configuration and costs, unless they are there, trains and exports.

    All ranks together. Wrong input is reported before anything is written, except a model that
    does not fit into memory. After an interruption the same call continues.

    Returns the exit code: 0, or 75 if the run was asked to stop.
    """
    with job.fail_together():
        find_origin(wish.model)
        _check_places(wish)
        _check_overrides(wish)
    recipe = None if wish.is_dataset else job.on_first(lambda: _recipe(wish))
    with job.fail_together():
        check_torch()
    # Loads torch only after every check that does not need it.
    from dynapipe_hpc.experiment.profile.grid import ProfileGrid
    from dynapipe_hpc.experiment.profile.profile import write_costs
    from dynapipe_hpc.experiment.rank.devices import memory_of_ranks

    on_gpus, memory_bytes = memory_of_ranks(job)
    memory = wish.memory or f"{memory_bytes // 10**6}MB"
    proposal = Wish(
        wish.data, job.size, memory, wish.model, lora=wish.lora, on_gpus=on_gpus, sets=wish.sets
    )
    is_new = job.broadcast(not wish.config.exists())
    with _nothing_left(job, wish.output):
        job.on_first(lambda: wish.output.mkdir(parents=True, exist_ok=True))
        if recipe and job.broadcast(not wish.data.exists()):
            with progress_of("preprocess") as on_share:
                preprocess_together(
                    job,
                    wish.sources,
                    wish.data,
                    recipe,
                    options=PreprocessOptions(False, False, 0),
                    on_progress=lambda share, _: on_share(share),
                )
        if is_new:
            job.on_first(lambda: propose(proposal, wish.config))
    if on_gpus and wish.measures:
        job.on_first(lambda: _name_costs(wish))
    with job.fail_together():
        config = load_config(wish.config)
        for override in wish.overrides:
            if load_config(wish.config, [override]) != config:
                raise InputError(
                    f"{wish.config}: does not have {override}; leave that out, change the file, "
                    "or name a new folder: -o FOLDER"
                )
    cost = config.planner.cost
    is_to_measure = isinstance(cost, ProfiledConfig) and cost.path == wish.costs
    if is_to_measure and job.broadcast(not wish.costs.exists()):
        with job.fail_together():
            grid = ProfileGrid.from_config(config)
        with progress_of("profile") as on_progress:
            write_costs(job, config, grid, wish.costs, on_progress=on_progress)
    experiment = start_experiment(job, wish.config, [])
    from dynapipe_hpc.experiment.run.run import run_experiment

    if exit_code := run_experiment(job, experiment, wish.run):
        return exit_code
    for line in job.on_first(lambda: list(_results(wish))):
        job.say(line)
    return 0


def _check_places(wish: Finetune) -> None:
    """Refuses a folder that holds something else."""
    known = {"data.h5", "config.toml", "costs.h5", "run"}
    try:
        names = {path.name for path in wish.output.iterdir() if not path.name.startswith(".")}
    except FileNotFoundError:
        names = set()
    except OSError as error:
        raise InputError(f"{wish.output}: {error.strerror}; name a new folder: -o FOLDER") from None
    if names and not names & known:
        raise InputError(f"{wish.output}: holds other files; name a new folder: -o FOLDER")
    if "iterations.jsonl" in names:
        raise InputError(f"{wish.output}: is the folder of a run; name a new folder: -o FOLDER")
    if not wish.is_dataset and wish.data.exists():
        with DatasetFile(wish.data) as dataset:
            made_of = dataset.header.sources
        if made_of != tuple(map(str, wish.sources)):
            raise InputError(
                f"{wish.data}: was made of {', '.join(made_of)}; name the same files, or a new "
                "folder: -o FOLDER"
            )
        made_ns = wish.data.stat().st_mtime_ns
        for source in wish.sources:
            if source.exists() and source.stat().st_mtime_ns > made_ns:
                raise InputError(
                    f"{wish.data}: was made before {source} was changed; remove {wish.output} to "
                    "start over, or name a new folder: -o FOLDER"
                )
    if wish.config.exists():
        config = load_config(wish.config)
        if config.model.init_from != str(wish.model):
            raise InputError(
                f"{wish.config}: fine-tunes {config.model.init_from}, not {wish.model}; name "
                f"{config.model.init_from}, or a new folder: -o FOLDER"
            )


def _check_overrides(wish: Finetune) -> None:
    """Refuses values that no configuration may have."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(_LEAST.format(model=tomli_w.dumps({"init_from": str(wish.model)})))
        try:
            load_config(path, wish.overrides)
        except InputError as error:
            raise InputError(str(error).replace(f"{path}: ", "")) from None


def _recipe(wish: Finetune) -> Recipe:
    record_format = format_of_sources(wish.sources, PAIR_FIELDS)
    for source in wish.sources:
        if not source.is_file():
            raise InputError(f"{source}: no such file; name files of chats or of other text")
    files = read_tokenizer(wish.model)
    if record_format.needs_template and not files.templates:
        raise InputError(
            f"{wish.model}: has no chat template, which chats need; name a model that has one, or "
            "make a dataset with dynapipe-hpc preprocess --template FILE and name it"
        )
    return recipe_of(load_tokenizer(files), record_format)


@contextmanager
def _nothing_left(job: Job, output: Path) -> Iterator[None]:
    try:
        yield
    except SystemExit as end:
        if job.is_first and end.code == WRONG_INPUT and not (output / "data.h5").exists():
            with suppress(OSError):
                output.rmdir()
        raise


def _name_costs(wish: Finetune) -> None:
    """Lets the configuration name the costs that will be measured, unless it names other costs."""
    text = wish.config.read_text(encoding="utf-8")
    before, heading, rest = text.partition("[planner.cost]\n")
    if 'kind = "analytic"' not in rest or any(s.startswith("planner.cost") for s in wish.sets):
        return
    estimates, blank, after = rest.partition("\n\n")
    modes = next(line for line in estimates.splitlines() if line.startswith("recompute"))
    table = tomli_w.dumps({"kind": "profiled", "path": str(wish.costs)})
    measured = f"{table}{modes}"
    with atomic_write(wish.config) as new:
        new.write_text(f"{before}{heading}{measured}{blank}{after}", encoding="utf-8")


def _results(wish: Finetune) -> Iterator[str]:
    from dynapipe_hpc.training.huggingface.import_export import export_model

    model, adapters = (wish.output / name for name in ("model", "adapters"))
    is_adapted = load_config(wish.config).model.lora is not None
    if is_adapted and not adapters.exists():
        export_model(wish.run, adapters, None, None)
    if not model.exists():
        export_model(wish.run, model, None, wish.model if is_adapted else None)
    run = RunFolder.open(wish.run)
    page = wish.output / "report.html"
    write_page([run], compare([run]), page)
    evaluations = run.evaluations()
    if evaluations:
        first, last = evaluations[0].loss, evaluations[-1].loss
        yield f"loss on samples that were held out: {first:.4f} before, {last:.4f} after"
    records = list(run.records())
    seconds = sum(record.measured_ms for record in records) / 1e3
    tokens = sum(record.real_tokens for record in records)
    yield f"{tokens:,} tokens in {duration(seconds)}, {tokens / seconds:,.0f} tokens/s"
    yield f"model: {model}; report: {page}; run: {run.path}"
    with DatasetFile(wish.data) as dataset:
        chat = " --chat" if dataset.header.turns or dataset.header.turn_end_ids else ""
    yield f"next: dynapipe-hpc generate {quote(str(model))}{chat} --prompt 'TEXT'"
