"""Environments of launchers: each as its launcher was seen to write it."""

import pytest

from dynapipe_hpc.job.launch import device_index, read_started

CORES = 8
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_CPUS_PER_TASK": "2",
}
STEP = BATCH | {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-1@1",
    "PMIX_RANK": "5",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "11", "MPI_LOCALRANKID": "1"}
PALS = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_CONTROL_PORT": "1"}


@pytest.mark.parametrize(
    ("environment", "launcher", "interface", "ranks"),
    [
        ({}, None, None, (0, 1, 0)),
        (BATCH, None, None, (0, 1, 0)),
        (STEP, "srun", None, (3, 4, 1)),
        (STEP | {"PMIX_NAMESPACE": "slurm.pmix.7.0"}, "srun", "PMIx", (3, 4, 1)),
        (STEP | {"PMI_FD": "13", "PMI_RANK": "3", "PMI_SIZE": "4"}, "srun", "PMI", (3, 4, 1)),
        (STEP | {"PMI_CONTROL_PORT": "20000"}, "srun", "Cray PMI", (3, 4, 1)),
        (OPEN_MPI, "mpiexec of Open MPI", "PMIx", (5, 8, 1)),
        (MPICH, "mpiexec of MPICH", "PMI", (5, 8, 1)),
        (PALS, "mpiexec of Cray", "PMI", (5, 8, 1)),
    ],
)
def test_every_launcher_is_known_by_its_variables(
    environment: dict[str, str], launcher: str, interface: str, ranks: tuple[int, int, int]
) -> None:
    started = read_started(environment, CORES)
    assert (started.launcher, started.interface) == (launcher, interface)
    assert (started.rank, started.size, started.local_rank) == ranks


@pytest.mark.parametrize(
    ("environment", "is_on_one_host"),
    [
        ({}, True),
        (BATCH, True),
        ({"PMIX_NAMESPACE": "another launcher's"}, False),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "4"}, True),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, False),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "3,1"}, False),
        (STEP, False),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, True),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, False),
        (MPICH | {"MPI_LOCALNRANKS": "8"}, True),
        (PALS | {"PMI_LOCAL_SIZE": "2"}, False),
    ],
)
def test_a_job_of_one_host_is_known_before_mpi_starts(
    environment: dict[str, str], is_on_one_host: bool
) -> None:
    assert read_started(environment, CORES).is_on_one_host is is_on_one_host


@pytest.mark.parametrize("inner", [OPEN_MPI, MPICH])
def test_an_mpiexec_counts_more_than_the_step_that_its_daemons_run_in(
    inner: dict[str, str],
) -> None:
    started = read_started(STEP | {"SLURM_STEP_NUM_TASKS": "2"} | inner, CORES)
    assert (started.rank, started.size) == (5, 8)


@pytest.mark.parametrize(
    ("environment", "n_cores"),
    [({}, CORES), (STEP, 2), (STEP | {"SLURM_CPUS_PER_TASK": "16"}, CORES)],
)
def test_cores_are_those_one_is_bound_to_and_no_more_than_were_asked_for(
    environment: dict[str, str], n_cores: int
) -> None:
    assert read_started(environment, CORES).n_cores == n_cores


def test_the_ranks_of_a_host_take_its_gpus_in_turn() -> None:
    assert [device_index(local_rank, 2) for local_rank in range(4)] == [0, 1, 0, 1]
    assert [device_index(local_rank, 1) for local_rank in range(4)] == [0, 0, 0, 0]  # one each


def test_variables_that_a_script_passes_on_empty_count_as_absent() -> None:
    alone = read_started({}, CORES)
    for environment in (STEP, OPEN_MPI, MPICH, PALS):
        assert read_started(dict.fromkeys(environment, ""), CORES) == alone
    assert read_started(STEP | {"SLURM_CPUS_PER_TASK": ""}, CORES).n_cores == CORES
