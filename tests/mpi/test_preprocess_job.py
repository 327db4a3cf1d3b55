"""Ranks that preprocess together write what one process writes."""

import gzip
import json
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGUSR1

import h5py
import pytest
from mpi4py import MPI

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, verify_dataset
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.text import shard
from dynapipe_hpc.data.text.chat_template import ChatTemplate
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, PreprocessTotals, preprocess
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenizers import Tokenizer
from dynapipe_hpc.experiment import preprocess_job
from dynapipe_hpc.experiment.preprocess_job import Preprocessed, preprocess_together
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.slurm import STOPPED

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()
LAST = N_RANKS - 1
ONE = PreprocessOptions(n_workers=1)
SKIPPING = PreprocessOptions(n_workers=1, skip_bad=True)
AGAIN = PreprocessOptions(n_workers=1, force=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first rank's."""
    path: Path = WORLD.bcast(tmp_path)
    return path


@pytest.fixture
def part_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """Least size of the parts that a file is split into: less than outside of tests."""
    monkeypatch.setattr(shard, "MIN_PART_BYTES", 100_000)
    return shard.MIN_PART_BYTES


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
) -> Preprocessed:
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
    options: PreprocessOptions = ONE,
) -> str:
    """Message of the job as it ended on all ranks."""
    with pytest.raises(SystemExit) as raised:
        preprocess_together(Job(WORLD), sources, output, Recipe(Tokenizer()), options=options)
    assert raised.value.code == code
    said = capsys.readouterr().err
    assert (said == "") == (RANK > 0)
    WORLD.Barrier()
    told: str = WORLD.bcast(said)
    return told


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Path], Path], None]:
    """Makes all shards of a dataset, as a job that ends before it joins them."""

    def make(sources: Sequence[Path], output: Path) -> None:
        def end(*_: object) -> int:
            raise InputError("before shards are joined")

        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(preprocess_job, "join_datasets", end)
            together(sources, output)
        WORLD.Barrier()

    return make


def test_the_dataset_is_that_of_one_process(folder: Path) -> None:
    sources = [
        write_lines(folder / f"{name}.jsonl", n) for name, n in (("a", 50), ("b", 3), ("c", 700))
    ]
    made = together(sources, folder / "x.h5")
    assert (made.n_shards, made.n_reused) == (3, 0)
    totals, samples = alone(sources, folder / "alone.h5")
    assert verify_dataset(folder / "x.h5") == samples
    if RANK == 0:
        assert made.totals == totals
    with DatasetFile(folder / "x.h5") as ours, DatasetFile(folder / "alone.h5") as whole:
        assert ours.task_names == whole.task_names
        assert ours.task_ids.tolist() == whole.task_ids.tolist()
        assert ours.header.sources == whole.header.sources
        one, other = (each.read(Sample(51, 3, 2)).inputs.tolist() for each in (ours, whole))
        assert one == other == [*b"b 1"]


def test_ranks_share_one_large_file(folder: Path, part_bytes: int) -> None:
    n_lines = 2 * part_bytes // 5000 + 10
    source = write_lines(folder / "a.jsonl", n_lines, length=5000)
    assert together([source], folder / "x.h5").n_shards == 3
    _, samples = alone([source], folder / "alone.h5")
    assert verify_dataset(folder / "x.h5") == samples


def test_ranks_render_conversations_plain_and_compressed(folder: Path, part_bytes: int) -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    template = ChatTemplate("t", source)
    recipe = Recipe(Tokenizer(start_id=None), RecordFormat.MESSAGES, template=template)
    chat = {"messages": [{"role": "assistant", "content": "a b"}, {"role": "user", "content": "c"}]}
    plain, packed = folder / "a.jsonl", folder / "b.jsonl.gz"
    if RANK == 0:
        plain.write_text(f"{json.dumps(chat)}\n" * (2 * part_bytes // 90))
        packed.write_bytes(gzip.compress(plain.read_bytes()))
    WORLD.Barrier()
    made = together([plain, packed], folder / "x.h5", recipe=recipe)
    assert made.n_shards == 3
    _, samples = alone([plain, packed], folder / "alone.h5", recipe)
    assert verify_dataset(folder / "x.h5") == samples
    with DatasetFile(folder / "x.h5") as dataset:
        assert dataset.start_id is None
        assert dataset.spans.of_sample(dataset.n_samples - 1) == [(0, 3), (3, 4)]


def test_a_source_named_twice_is_there_twice_and_made_once(folder: Path) -> None:
    source = write_lines(folder / "a.jsonl", 7)
    assert together([source, source], folder / "x.h5").n_shards == 1
    with DatasetFile(folder / "x.h5") as dataset:
        assert dataset.n_samples == 14


def test_a_job_goes_on_with_what_is_there(
    folder: Path, interrupted: Callable[[Sequence[Path], Path], None]
) -> None:
    sources = [write_lines(folder / f"{k}.jsonl", 20 + k) for k in range(5)]
    output, shards = folder / "x.h5", folder / "x.h5.shards"
    interrupted(sources, output)
    assert not output.exists()
    if RANK == 0:
        one, other, *_ = sorted(shards.iterdir())
        one.unlink()
        with h5py.File(other, "a") as file:
            file["inputs/tokens"][5] ^= 1
        (shards / f".{one.name}.elsewhere.17.partial").write_bytes(b"half")
        (shards / "notes.txt").touch()
    WORLD.Barrier()
    made = together(sources, output)
    assert (made.n_shards, made.n_reused) == (5, 3)
    assert verify_dataset(output) == alone(sources, folder / "alone.h5")[1]
    assert [path.name for path in shards.iterdir()] == ["notes.txt"]


def test_a_bad_line_on_one_rank_ends_all_and_keeps_what_is_finished(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The largest first, so every rank has made something when one comes to the bad line.
    sources = [write_lines(folder / f"{k}.jsonl", 200) for k in range(N_RANKS)]
    bad = write_lines(folder / "bad.jsonl", 3)
    if RANK == 0:
        with bad.open("a") as file:
            file.write("{}\n")
    WORLD.Barrier()
    told = ended_with(2, capsys, [*sources, bad], folder / "x.h5")
    assert told == (
        f"dynapipe-hpc: {bad}:4: field 'inputs' is missing (found no fields); name the "
        "fields of the input and the target: --inputs-field NAME --targets-field NAME; preference "
        "pairs have 'chosen' and 'rejected'; correct it, or leave it out with preprocess "
        "--skip-bad\n"
    )
    assert not (folder / "x.h5").exists()
    write_lines(bad, 3)
    assert together([*sources, bad], folder / "x.h5").n_reused >= 1


def test_ranks_do_not_work_on_after_one_failed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [write_lines(folder / f"{k}.jsonl", 20_000) for k in range(8)]
    bad = folder / "bad.jsonl"
    if RANK == 0:
        bad.write_text("nonsense\n" + " " * 50_000_000)
    WORLD.Barrier()
    assert "bad.jsonl:1: not JSON" in ended_with(2, capsys, [*sources, bad], folder / "x.h5")
    # Those that were begun are not finished.
    assert len(list((folder / "x.h5.shards").iterdir())) < 8


def test_the_first_bad_line_is_that_of_the_text(folder: Path) -> None:
    sources = [write_lines(folder / f"{k}.jsonl", 10) for k in range(4)]
    if RANK == 0:
        for source in sources[2:]:
            source.write_text(source.read_text() + "nonsense\n" * 2)
    WORLD.Barrier()
    totals = together(sources, folder / "x.h5", SKIPPING).totals
    if RANK == 0:
        assert totals.n_skipped == 4
        assert totals.first_skipped.startswith(f"{sources[2]}:11: not JSON")


def test_a_missing_source_ends_all_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ended_with(2, capsys, [folder / "none.jsonl"], folder / "x.h5")
    assert told == f"dynapipe-hpc: {folder}/none.jsonl: cannot be read: No such file or directory\n"
    assert not (folder / "x.h5.shards").exists()


@pytest.mark.skipif(N_RANKS < 2, reason="needs at least 2 ranks")
def test_ranks_with_different_tokenizers_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [write_lines(folder / f"{k}.jsonl", 10) for k in range(N_RANKS)]
    other = Tokenizer(sha256="cd" * 32)
    recipe = Recipe(other if RANK == LAST else Tokenizer())
    with pytest.raises(SystemExit) as raised:
        preprocess_together(Job(WORLD), sources, folder / "x.h5", recipe, options=ONE)
    assert raised.value.code == 2
    assert ("use the same tokenizer files on all hosts" in capsys.readouterr().err) == (RANK == 0)


def test_a_full_disk_on_one_rank_is_one_message_and_keeps_what_is_finished(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    interrupted: Callable[[Sequence[Path], Path], None],
) -> None:
    """Files may not grow above a limit, which is what programs see of a full disk."""
    small = [write_lines(folder / f"{k}.jsonl", 10) for k in range(2)]
    large = write_lines(folder / "large.jsonl", 20_000)
    interrupted(small, folder / "x.h5")
    capsys.readouterr()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        told = ended_with(1, capsys, [*small, large], folder / "x.h5", AGAIN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert told.startswith(f"dynapipe-hpc: {folder / 'x.h5.shards'}/")
    assert told.endswith(
        "written: File too large; start again to continue: finished shards are kept\n"
    )
    assert told.count("\n") == 1
    assert together([*small, large], folder / "x.h5", AGAIN).n_reused == 2


def test_a_rank_that_is_asked_to_stop_stops_all_and_the_next_job_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [write_lines(folder / f"{k}.jsonl", 4000) for k in range(3 * N_RANKS)]
    job = Job(WORLD)

    def ask(share: float) -> None:
        if RANK == LAST and share > 0.5:
            job.stop.asked = SIGUSR1

    with pytest.raises(SystemExit) as raised:
        preprocess_together(
            job, sources, folder / "x.h5", Recipe(Tokenizer()), options=ONE, on_share=ask
        )
    assert raised.value.code == STOPPED
    said = "dynapipe-hpc: stopped by SIGUSR1; start again to continue\n"
    assert capsys.readouterr().err == (said if RANK == 0 else "")
    WORLD.Barrier()
    made = together(sources, folder / "x.h5")
    assert 1 <= made.n_reused < made.n_shards
    _, samples = alone(sources, folder / "alone.h5")
    assert verify_dataset(folder / "x.h5") == samples
