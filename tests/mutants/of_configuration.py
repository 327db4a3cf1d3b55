"""Mistakes in what is said of configuration keys."""

from tests.mutants.mutant import Mutant

KEYS = ("tests/experiment/test_config_keys.py",)
FABRIC = ("tests/experiment/doctor/test_check_network.py",)
LAUNCH = ("tests/job/test_launch_environment.py",)
SLURM = ("tests/job/test_slurm.py",)
COSTS = ("tests/experiment/test_check_costs.py",)
BEGINNER = ("tests/experiment/test_finetune.py",)
PROPOSAL = ("tests/experiment/study/test_propose.py",)

CONFIGURATION = (
    # environment variables
    Mutant(
        "job/launch.py",
        "environment.get(name) or default",
        "environment.get(name, default)",
        "an empty variable is no number",
        LAUNCH,
    ),
    Mutant(
        "job/launch.py",
        "all(environment.get(name) for name",
        "all(name in environment for name",
        "empty variables are a launcher's",
        LAUNCH,
    ),
    Mutant(
        "job/launch.py",
        "in _INTERFACES.items() if environment.get(key)",
        "in _INTERFACES.items() if key in environment",
        "an empty variable is an interface",
        LAUNCH,
    ),
    Mutant(
        "job/slurm.py",
        "if array and task else",
        "if task is not None else",
        "an empty variable is a task of an array",
        SLURM,
    ),
    Mutant(
        "data/config_table.py",
        "reversed(cls.__mro__)",
        "(cls,)",
        "keys of parent classes have no description",
        KEYS,
    ),
    Mutant(
        "experiment/config_keys.py",
        "REQUIRED if is_required else",
        "REQUIRED if False else",
        "a required key seems to have a default",
        KEYS,
    ),
    Mutant(
        "experiment/config_keys.py",
        'yield from _tables(f"{path}.{name}", inner)',
        "yield from ()",
        "tables inside tables are left out",
        KEYS,
    ),
    Mutant(
        "experiment/config_keys.py",
        '"anyOf" if key == "oneOf" else key',
        "key",
        "a table that fits two variants is refused",
        KEYS,
    ),
    Mutant(
        "data/config_table.py",
        'prefix.endswith("i")',
        "False",
        "a GiB is a GB",
        ("tests/experiment/test_load.py",),
    ),
    Mutant(
        "data/config_table.py",
        '{"anyOf": [handler(core_schema), WRITTEN]}',
        "handler(core_schema)",
        "editors refuse sizes with a unit",
        KEYS,
    ),
    Mutant(
        "experiment/config_keys.py",
        '    "multipleOf": "a multiple of {}",\n',
        "",
        "a limit is not named",
        KEYS,
    ),
    Mutant(
        "experiment/finetune.py",
        "st_mtime_ns > made_ns",
        "st_mtime_ns > made_ns + 1",
        "files that were changed are not read again",
        BEGINNER,
    ),
    Mutant(
        "experiment/study/propose.py",
        "share = max(share, ceil(",
        "share = min(share, ceil(",
        "of few samples none is held out",
        ("tests/experiment/study/test_propose.py",),
    ),
    Mutant(
        "experiment/finetune.py",
        "load_config(path, wish.overrides)",
        "load_config(path)",
        "a wrong value is said when the data are made",
        BEGINNER,
    ),
    Mutant(
        "experiment/finetune.py",
        '            rmtree(shard_folder(output / "data.h5"), ignore_errors=True)\n',
        "",
        "parts of what no dataset becomes are left",
        BEGINNER,
    ),
    Mutant(
        "experiment/finetune.py",
        "if least and min(least) >",
        "if least and max(least) <",
        "what no memory holds is begun",
        BEGINNER,
    ),
    Mutant(
        "experiment/finetune.py",
        'if "iterations.jsonl" in names:',
        "if False:",
        "a run is taken for a folder of this command",
        BEGINNER,
    ),
    Mutant(
        "experiment/study/propose.py",
        "False: (0.999,)",
        "False: (1.0,)",
        "one long sample decides",
        PROPOSAL,
    ),
    Mutant(
        "experiment/study/propose.py",
        "if output.exists():",
        "if False:",
        "a file of the user is replaced",
        (f"{PROPOSAL[0]}::test_a_file_is_not_replaced",),
    ),
    Mutant(
        "experiment/study/propose.py",
        "min(times, key=",
        "max(times, key=",
        "the slowest division is proposed",
        (f"{PROPOSAL[0]}::test_the_division_that_is_predicted_fastest_is_proposed",),
    ),
    Mutant(
        "experiment/study/propose.py",
        "_RATES = {False: (2e-5, 2e-4)",
        "_RATES = {False: (3e-4, 2e-4)",
        "tuning begins with the rate of a new model",
        PROPOSAL,
    ),
    Mutant(
        "experiment/checks.py",
        "cluster.n_replicas * cluster.n_shards == 1",
        "cluster.n_replicas == 1",
        "shards on GPUs are planned with the sums of processors, without a word",
        (f"{COSTS[0]}::test_gpus_whose_sums_are_estimated_at_a_processors_rate_are_a_warning",),
    ),
    Mutant(
        "experiment/checks.py",
        '"reduction_bytes_per_ms" in cost.model_fields_set',
        "False",
        "a rate of sums that is set is warned of",
        (f"{COSTS[0]}::test_gpus_whose_sums_are_estimated_at_a_processors_rate_are_a_warning",),
    ),
    Mutant(
        "experiment/doctor/check_machine.py",
        'os.environ.get(_GPU_AWARE, "") not in ("", "0")',
        "False",
        "MPI that may deadlock beside NCCL is not told",
        FABRIC,
    ),
    Mutant(
        "experiment/doctor/check_machine.py",
        "if plugins := _plugins():",
        "if plugins := [Path()]:",
        "GPUs that would use TCP are not told",
        FABRIC,
    ),
    Mutant(
        "experiment/doctor/torch_checks.py",
        "index = device_index(case.on_host.rank, n_devices)",
        "index = n_devices - 1",
        "every rank makes a context on the last GPU",
        ("tests/experiment/doctor/test_torch_checks.py",),
    ),
    Mutant(
        "experiment/rank/devices.py",
        "and torch.xpu.is_available()",
        "and False",
        "ranks on Intel GPUs compute on processors without a word",
        ("tests/experiment/rank/test_devices.py",),
    ),
)
