"""Scripts around batch jobs, run without Slurm: what they pass on, and to whom."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "slurm"
PRINTS = '#!/bin/sh\necho "$CUDA_DEVICE_MAX_CONNECTIONS $NCCL_DEBUG:" "$@"\n'
# Notes its arguments, a line each, and numbers jobs from 101; sbatch may add the cluster's name.
SBATCH = """\
#!/bin/bash
printf '%s\\n' "$@" '' >> submitted
n_jobs=$(grep -c '^$' submitted)
[ "$n_jobs" != "${REFUSES:-}" ] || exit 1
echo "$((100 + n_jobs));site"
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(folder: Path, *words: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", ["run", "profile", "grid_search"])
@pytest.mark.parametrize(
    ("given", "passed"),
    [({}, "32 WARN"), ({"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_DEBUG": "INFO"}, "1 INFO")],
)
def test_jobs_on_gpus_have_enough_queues_and_hear_of_failures(
    tmp_path: Path, script: str, given: dict[str, str], passed: str
) -> None:
    program(tmp_path / "launch", PRINTS)
    (tmp_path / "v.txt").write_text("a.toml\n")
    path = SCRIPTS / f"{script}.sbatch"
    done = run(tmp_path, path, "v.txt", "x", LAUNCHER="launch", SLURM_ARRAY_TASK_ID="1", **given)
    assert done.stdout.startswith(f"{passed}: dynapipe-hpc "), done.stderr


VARIANTS = """\
# seeds

a.toml --set planner.cost.recompute=["none", "full"]  --set training.seed=2\r
  b.toml\t
c.toml --set 'planner.batch={rule = "dynamic"}' --set=training.seed=3"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (1, None),
        (2, None),
        (3, "a.toml|--set|planner.cost.recompute=['none', 'full']|--set|training.seed=2"),
        (4, "b.toml"),
        (5, "c.toml|--set|planner.batch={rule = 'dynamic'}|--set|training.seed=3"),
        (6, None),
    ],
)
def test_variants_are_read_as_people_write_them(
    tmp_path: Path, line: int, words: str | None
) -> None:
    program(tmp_path / "launch", "#!/bin/sh\nprintf '%s|' \"$@\"\n")
    (tmp_path / "v.txt").write_text(VARIANTS, newline="")
    path = SCRIPTS / "grid_search.sbatch"
    done = run(tmp_path, path, "v.txt", "x", LAUNCHER="launch", SLURM_ARRAY_TASK_ID=str(line))
    assert done.returncode == 0, done.stderr
    if words is None:
        assert done.stdout == f"v.txt, line {line}: nothing to run\n"
    else:
        assert done.stdout.replace('"', "'") == f"dynapipe-hpc|run|{words}|-o|x/{line}|"


CHAIN = (
    *(SCRIPTS / "chain.sh", "c.toml", "d.h5", "t.h5", "runs/my run"),
    *("--tokenizer", "t.json", "a"),
)


def jobs(folder: Path) -> list[list[str]]:
    of_jobs = (folder / "submitted").read_text().removesuffix("\n\n").split("\n\n")
    return [job.split("\n") for job in of_jobs]


def test_a_chain_is_four_jobs_that_wait_for_each_other(tmp_path: Path) -> None:
    program(tmp_path / "sbatch", SBATCH)
    done = run(tmp_path, *CHAIN, SIZE="--nodes=2 --time=5", TEXT_SIZE="--ntasks=3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "preprocess 101, profile 102, run 103, report 104\n"
    submitted = ["--parsable", "--kill-on-invalid-dep=yes"]
    files = ["--set", "data.dataset=d.h5", "--set", "planner.cost.path=t.h5"]
    size = ["--nodes=2", "--time=5"]
    text, profile, train, report = jobs(tmp_path)
    script = f"{SCRIPTS}/preprocess.sbatch"
    assert text == [*submitted, "--ntasks=3", script, "--tokenizer", "t.json", "a", "d.h5"]
    after = "--dependency=afterok:{}".format
    script = f"{SCRIPTS}/profile.sbatch"
    assert profile == [*submitted, after(101), *size, script, "c.toml", "-o", "t.h5", *files]
    script = f"{SCRIPTS}/run.sbatch"
    assert train == [*submitted, after(102), *size, script, "c.toml", "-o", "runs/my run", *files]
    assert report[:3] == [*submitted, after(103)]
    assert report[-1] == r"dynapipe-hpc report runs/my\ run"


def test_a_chain_ends_with_the_first_job_that_is_refused(tmp_path: Path) -> None:
    program(tmp_path / "sbatch", SBATCH)
    done = run(tmp_path, *CHAIN, SIZE="", REFUSES="2")
    assert done.returncode != 0
    assert len(jobs(tmp_path)) == 2


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """A folder with a dataset, and an environment whose Python prints its arguments."""
    program(tmp_path / "venv" / "bin" / "python", '#!/bin/sh\necho "$0" "$@"\n')
    subprocess.run(["tar", "-C", tmp_path / "venv", "-cf", tmp_path / "env.tar", "."], check=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.h5").write_text("samples")
    return tmp_path


def stage(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {"STAGE_ENV": "env.tar", "STAGE_DATA": "data/train.h5", "SLURM_JOB_ID": "7"}
    return run(folder, SCRIPTS / "staged.sh", *words, **environment, STAGE_TO=str(folder / "disk"))


def test_a_rank_runs_with_the_copies(staged: Path) -> None:
    done = stage(staged, "dynapipe-hpc", "run", "c.toml", "-o", "my run")
    place = staged / "disk" / "dynapipe-7"
    told = f"-m dynapipe_hpc run c.toml -o my run --set data.dataset={place}/train.h5\n"
    assert done.stdout == f"{place}/env/bin/python {told}", done.stderr
    assert (place / "train.h5").read_text() == "samples"
    assert place.stat().st_mode & 0o777 == 0o700


def test_only_the_first_rank_of_a_node_copies(staged: Path) -> None:
    stage(staged, "dynapipe-hpc", "run")
    (staged / "env.tar").unlink()
    (staged / "data" / "train.h5").unlink()
    assert stage(staged, "dynapipe-hpc", "run").returncode == 0


def test_a_copy_that_failed_is_tried_again(staged: Path) -> None:
    (staged / "data" / "train.h5").rename(staged / "elsewhere")
    assert stage(staged, "dynapipe-hpc", "run").returncode != 0
    (staged / "elsewhere").rename(staged / "data" / "train.h5")
    assert stage(staged, "dynapipe-hpc", "run").returncode == 0


def test_only_this_package_is_staged(staged: Path) -> None:
    done = stage(staged, "python", "x.py")
    assert done.returncode == 2
    assert "expected dynapipe-hpc, got python" in done.stderr


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.s*")), ids=lambda path: path.name)
def test_scripts_are_valid_and_those_of_jobs_short(script: Path) -> None:
    read = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    lines = script.read_text().splitlines()
    if script.suffix == ".sbatch":
        assert len(lines) <= 25
        assert sum(line.startswith("exec ") for line in lines) == 1


@pytest.mark.parametrize(("given", "passed"), [({"SLURM_CPUS_PER_TASK": "8"}, "8"), ({}, "")])
def test_a_grid_search_passes_on_all_that_it_is_given(
    tmp_path: Path, given: dict[str, str], passed: str
) -> None:
    """Cores per task too, but none of its own: they may have been given per GPU."""
    (tmp_path / "v.txt").write_text("a.toml\nb.toml --set training.seed=1\n")
    program(tmp_path / "launch", '#!/bin/sh\necho "$SRUN_CPUS_PER_TASK:" "$@"\n')
    words = ("v.txt", "runs/x", "--set", "data.dataset=my data.h5")
    task = {"LAUNCHER": "launch", "SLURM_ARRAY_TASK_ID": "2", **given}
    done = run(tmp_path, SCRIPTS / "grid_search.sbatch", *words, **task)
    told = f"{passed}: dynapipe-hpc run b.toml --set training.seed=1 -o runs/x/2 --set data."
    assert done.stdout == f"{told}dataset=my data.h5\n"
