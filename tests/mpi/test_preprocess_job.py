"""Ranks that preprocess together write what one process writes."""

import gzip
import json
import resource
from collections.abc import Sequence
from pathlib import Path
from signal import SIGUSR1
from typing import Any

import pytest
from mpi4py import MPI

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, verify_dataset
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.text.chat_template import ChatTemplate
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, PreprocessTotals, preprocess
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenizers import Marked, Tokenizer
from dynapipe_hpc.experiment import preprocess_job
from dynapipe_hpc.experiment.preprocess_job import preprocess_together
from dynapipe_hpc.job.job import Job

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()
LAST = N_RANKS - 1
ONE = PreprocessOptions(n_workers=1)
SKIPPING = PreprocessOptions(n_workers=1, skip_bad=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first rank's."""
    path: Path = WORLD.bcast(tmp_path)
    return path


@pytest.fixture
def round_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """Text of a round of one rank: less than outside of tests, so that there are many rounds."""
    monkeypatch.setattr(preprocess_job, "ROUND_BYTES", 100_000)
    return preprocess_job.ROUND_BYTES


def write_lines(path: Path, n_lines: int, length: int = 5) -> Path:
    """On the first rank; `path` on all."""
    if RANK == 0:
        records = (
            {"inputs": f"{path.stem} {i}", "targets": "x" * length, "task": f"task {i % 3}"}
            for i in range(n_lines)
        )
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    WORLD.Barrier()
    return path


def together(
    sources: Sequence[Path],
    output: Path,
    options: PreprocessOptions = ONE,
    recipe: Recipe | None = None,
) -> PreprocessTotals:
    made = preprocess_together(
        Job(WORLD), sources, output, recipe or Recipe(Tokenizer()), options=options
    )
    WORLD.Barrier()
    return made


def alone(
    sources: Sequence[Path], output: Path, recipe: Recipe | None = None
) -> tuple[PreprocessTotals, str]:
    """Result of one process: its totals, and the hash of its samples."""
    found = None
    if RANK == 0:
        totals = preprocess(sources, output, recipe or Recipe(Tokenizer()), ONE)
        found = totals, verify_dataset(output)
    made: tuple[PreprocessTotals, str] = WORLD.bcast(found)
    return made


def ended_with(
    code: int,
    capsys: pytest.CaptureFixture[str],
    sources: Sequence[Path],
    output: Path,
    recipe: Recipe | None = None,
    options: PreprocessOptions = ONE,
) -> str:
    """Message of the job as it ended on all ranks, with nothing left of the dataset."""
    with pytest.raises(SystemExit) as raised:
        preprocess_together(
            Job(WORLD), sources, output, recipe or Recipe(Tokenizer()), options=options
        )
    assert raised.value.code == code
    said = capsys.readouterr().err
    assert (said == "") == (RANK > 0)
    WORLD.Barrier()
    assert not list(output.parent.glob("*x.h5*"))
    told: str = WORLD.bcast(said)
    return told


def test_the_dataset_is_that_of_one_process(folder: Path, round_bytes: int) -> None:
    n_lines = 5 * round_bytes // 60
    sources = [
        write_lines(folder / f"{name}.jsonl", n)
        for name, n in (("a", 50), ("b", 0), ("c", n_lines))
    ]
    made = together(sources, folder / "x.h5")
    totals, samples = alone(sources, folder / "alone.h5")
    assert verify_dataset(folder / "x.h5") == samples
    if RANK == 0:
        assert made == totals
    with DatasetFile(folder / "x.h5") as ours, DatasetFile(folder / "alone.h5") as whole:
        assert ours.header.task_names == whole.header.task_names
        assert ours.task_ids.tolist() == whole.task_ids.tolist()
        assert ours.header.sources == whole.header.sources
        one, other = (each.read(Sample(51, 3, 2)).inputs.tolist() for each in (ours, whole))
        assert one == other == [*b"c 1"]


@pytest.mark.usefixtures("round_bytes")
def test_ranks_with_several_workers_each_keep_the_order(folder: Path) -> None:
    source = write_lines(folder / "a.jsonl", 20_000)
    together([source], folder / "x.h5", PreprocessOptions(n_workers=2))
    _, samples = alone([source], folder / "alone.h5")
    assert verify_dataset(folder / "x.h5") == samples


def test_ranks_render_conversations_plain_and_compressed(folder: Path, round_bytes: int) -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    template = ChatTemplate("t", {"default": source})
    recipe = Recipe(Tokenizer(start_id=None), RecordFormat.MESSAGES, template=template)
    chat = {"messages": [{"role": "assistant", "content": "a b"}, {"role": "user", "content": "c"}]}
    plain, packed = folder / "a.jsonl", folder / "b.jsonl.gz"
    if RANK == 0:
        plain.write_text(f"{json.dumps(chat)}\n" * (2 * round_bytes // 90))
        packed.write_bytes(gzip.compress(plain.read_bytes()))
    WORLD.Barrier()
    together([plain, packed], folder / "x.h5", recipe=recipe)
    _, samples = alone([plain, packed], folder / "alone.h5", recipe)
    assert verify_dataset(folder / "x.h5") == samples
    with DatasetFile(folder / "x.h5") as dataset:
        assert dataset.header.start_id is None
        assert dataset.spans.of_sample(dataset.n_samples - 1) == [(0, 3), (3, 4)]


@pytest.mark.usefixtures("round_bytes")
def test_a_bad_line_on_one_rank_ends_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [write_lines(folder / f"{k}.jsonl", 20_000) for k in range(2)]
    if RANK == 0:
        lines = sources[1].read_text().splitlines(keepends=True)
        lines[12_345] = "{}\n"
        sources[1].write_text("".join(lines))
    WORLD.Barrier()
    told = ended_with(2, capsys, sources, folder / "x.h5")
    assert told == (
        f"dynapipe-hpc: {sources[1]}:12346: field 'inputs' is missing (found no fields); name the "
        "fields of the input and the target: --inputs-field NAME --targets-field NAME; preference "
        "pairs have 'chosen' and 'rejected'; correct it, or leave it out with preprocess "
        "--skip-bad\n"
    )


def test_the_first_bad_line_is_that_of_the_text(folder: Path) -> None:
    sources = [write_lines(folder / f"{k}.jsonl", 10) for k in range(4)]
    if RANK == 0:
        for source in sources[2:]:
            source.write_text(source.read_text() + "nonsense\n" * 2)
    WORLD.Barrier()
    totals = together(sources, folder / "x.h5", SKIPPING)
    if RANK == 0:
        assert totals.n_skipped == 4
        assert totals.first_skipped.startswith(f"{sources[2]}:11: not JSON")


def test_a_missing_source_ends_all_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ended_with(2, capsys, [folder / "none.jsonl"], folder / "x.h5")
    assert told == f"dynapipe-hpc: {folder}/none.jsonl: cannot be read: No such file or directory\n"
    told = ended_with(2, capsys, [Path("-")], folder / "x.h5")
    assert "standard input: launchers may lose some of it; run dynapipe-hpc preprocess" in told


class FailingTokenizer(Tokenizer):
    """Fails on one rank only."""

    def encode(self, *text: Any, **options: Any) -> Marked:
        if RANK == LAST:
            raise RunError(f"rank {RANK} has lost a worker")
        return Tokenizer().encode(*text, **options)


@pytest.mark.usefixtures("round_bytes")
def test_an_error_on_one_rank_ends_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_lines(folder / "a.jsonl", 20_000)
    told = ended_with(1, capsys, [source], folder / "x.h5", Recipe(FailingTokenizer()))
    assert told == f"dynapipe-hpc: rank {LAST} has lost a worker\n"


def test_workers_that_one_rank_cannot_start_end_all(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(folder / "a.jsonl", 10)

    def fail(*_: object) -> None:
        raise RunError("worker processes cannot be started")

    if RANK == LAST:
        monkeypatch.setattr(preprocess_job, "open_pool", fail)
    told = ended_with(1, capsys, [source], folder / "x.h5")
    assert told == "dynapipe-hpc: worker processes cannot be started\n"


def test_a_full_disk_is_one_message(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files may not grow above a limit, which is what programs see of a full disk."""
    source = write_lines(folder / "large.jsonl", 20_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        told = ended_with(1, capsys, [source], folder / "x.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert told == f"dynapipe-hpc: {folder / 'x.h5'}: cannot be written: File too large\n"


@pytest.mark.usefixtures("round_bytes")
def test_a_rank_that_is_asked_to_stop_stops_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(folder / "a.jsonl", 20_000)
    job = Job(WORLD)
    if RANK == LAST:
        job.stop.asked = SIGUSR1
    with pytest.raises(SystemExit) as raised:
        preprocess_together(job, [source], folder / "x.h5", Recipe(Tokenizer()), options=ONE)
    assert raised.value.code == 1
    said = "dynapipe-hpc: stopped by SIGUSR1; nothing is written\n"
    assert capsys.readouterr().err == (said if RANK == 0 else "")
    WORLD.Barrier()
    assert not list(folder.glob("*x.h5*"))
