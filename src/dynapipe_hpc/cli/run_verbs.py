"""Verbs about runs and their machine: doctor, finetune, run, explain, report, slurm-scripts."""

import argparse

from dynapipe_hpc.cli.verb import CONFIG, FORCE, SET, number, option, output, say, switch, verb
from dynapipe_hpc.data.atomic_write import check_output
from dynapipe_hpc.data.errors import escaped, printable
from dynapipe_hpc.data.input_file import why_unreadable


@verb(
    "check that a run would work here; launch it exactly like the run",
    "Checks ranks, hosts and cores, transfers between all ranks, GPUs, memory and the run folder, "
    "and whether CONFIG can be run with them. Prints one fact per line, and for each problem how "
    "to fix it. Exits with 2 if there is a problem, 0 otherwise.",
    option("config CONFIG", "configuration file", nargs="?"),
    SET,
    output("FOLDER", "run folder, new or to continue (default: a new one in runs)"),
)
def doctor(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.experiment.doctor.examine import Case, examine
    from dynapipe_hpc.job.job import open_job

    with open_job() as job:
        case = Case.from_arguments(job, arguments.config, arguments.overrides, arguments.output)
        is_well = examine(case)
        case.close()
        return 0 if is_well else 2


@verb(
    "fine-tune a model on chats or other text, in one command",
    "Makes a dataset of CHATS with the tokenizer and template of MODEL, a configuration for the "
    "ranks and, on GPUs, a cost table; then trains, evaluates on held-out samples, and exports the "
    "fine-tuned model. All of it is in FOLDER: data.h5, config.toml, run, model, report.html. "
    "Running the same command again uses what it finds there and continues where it was "
    "interrupted. "
    "Preference pairs train by DPO. Without training.epochs and training.learning_rate in --set, "
    "every sample is trained on three times, at a rate of 2e-5 (adapters: 2e-4), or for preference "
    "pairs 1e-6 (adapters: 5e-6).",
    option("model MODEL", "Hugging Face model"),
    option("sources CHATS", "files of text, as for preprocess; or one dataset", nargs="+"),
    output("FOLDER", "folder for all output", required=True),
    number(
        "--lora RANK",
        "train adapters of this rank (default 16) in place of all weights",
        1,
        nargs="?",
        const=16,
    ),
    option("--memory SIZE", "memory of one rank, such as 76GB (default: what its device has)", str),
    SET,
    switch("--no-profile", "do not measure costs on GPUs"),
)
def finetune(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.finetune import Finetune, finetune
    from dynapipe_hpc.job.job import open_job

    wish = Finetune(
        arguments.model,
        arguments.sources,
        arguments.output,
        memory=arguments.memory,
        lora=arguments.lora,
        sets=arguments.overrides,
        measures=not arguments.no_profile,
    )
    with open_job() as job:
        return finetune(job, wish, lambda title: share_progress(title, shown=job.is_first))


@verb(
    "train; start it with mpiexec or srun, one process per rank",
    "Trains according to CONFIG, with one MPI rank per shard, stage and replica.",
    CONFIG,
    SET,
    output("FOLDER", "run folder; a run with checkpoints resumes from the newest", required=True),
)
def run(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.job.job import open_job

    with open_job() as job:
        # After MPI, whose checks of the launcher come before anything large is loaded.
        from dynapipe_hpc.experiment.run.start import start_experiment

        experiment = start_experiment(job, arguments.config, arguments.overrides)
        # Loads torch only after every check that does not need it.
        from dynapipe_hpc.experiment.run.run import run_experiment

        return run_experiment(job, experiment, arguments.output)


@verb(
    "say how a run ended, how far it got and what to try next",
    "Says from the run folder alone, on any machine that can read it, what ended a run (its last "
    "message, a signal, a kill), or that it still runs; which iteration and checkpoint were the "
    "last; and what to try next.",
    option("folder RUN", "folder of a run"),
)
def explain(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.experiment.run.explain_run import explain_run

    for line in explain_run(arguments.folder).splitlines():
        print(printable(line))
    return 0


@verb(
    "compare runs: prints a table, writes figures and timelines as an HTML page",
    "Prints the results of runs side by side and writes an HTML page.",
    option("runs RUN", "folder of a run; the others are compared with the first", nargs="+"),
    output(
        "OUT.html", "page to write (default: report.html in the run's folder, or next to the runs)"
    ),
    FORCE,
)
def report(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.report.comparison import compare
    from dynapipe_hpc.report.html import default_page, write_page
    from dynapipe_hpc.report.run_folder import RunFolder
    from dynapipe_hpc.report.table import text_table

    # `runs/*` also matches files next to the runs, such as an earlier report.
    folders = [path for path in arguments.runs if why_unreadable(path)]
    runs = [RunFolder.open(path) for path in folders or arguments.runs]
    comparison = compare(runs)
    say(text_table(comparison))
    if arguments.output and arguments.output.exists():
        check_output(arguments.output, [], arguments.force)
    page = arguments.output or default_page(runs)
    write_page(runs, comparison, page)
    print(f"\nreport: {escaped(str(page))}")
    return 0


@verb(
    "copy batch scripts and example configurations to start from",
    "Copies the folders slurm and configs into DIR, to be changed and submitted from there, and "
    "the programs that slurm/smoke.sbatch runs. Never overwrites anything.",
    option("folder DIR", "folder, new or existing"),
)
def slurm_scripts(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.job.starter_files import copy_starter_files

    names = copy_starter_files(arguments.folder)
    say(f"{arguments.folder}: {', '.join(names)}; slurm/README.md says how to submit")
    return 0
