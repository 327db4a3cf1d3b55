#!/bin/bash
# Submits four jobs, each of which starts when the one before it has succeeded: text becomes a
# dataset, layers are measured, the model is trained, and a report is written.
#   SIZE="--nodes=N --ntasks-per-node=G ..." slurm/chain.sh CONFIG DATASET.h5 COSTS.h5 runs/NAME \
#       [--tokenizer PATH] TEXT.jsonl...
# SIZE has the options of sbatch for the run and its profile, TEXT_SIZE those for the text. CONFIG
# has planner.cost.kind = "profiled"; the files named here replace those that it names.
set -euo pipefail

config=$1 dataset=$2 costs=$3 run=$4
here=$(dirname "$0")
: "${SIZE?has the options of sbatch for the run, and is not set}"
files=(--set "data.dataset=$dataset" --set "planner.cost.path=$costs")

# A job whose predecessor failed leaves the queue. sbatch may print a cluster's name after the number.
submit() { sbatch --parsable --kill-on-invalid-dep=yes "$@" | cut -d ';' -f 1; }
after() { echo "--dependency=afterok:$1"; }

# shellcheck disable=SC2086
{
    text=$(submit ${TEXT_SIZE:---ntasks=1 --cpus-per-task=8 --time=04:00:00} \
        "$here/preprocess.sbatch" "${@:5}" "$dataset")
    profile=$(submit "$(after "$text")" $SIZE "$here/profile.sbatch" "$config" -o "$costs" "${files[@]}")
    train=$(submit "$(after "$profile")" $SIZE "$here/run.sbatch" "$config" -o "$run" "${files[@]}")
    report=$(submit "$(after "$train")" --ntasks=1 --time=00:30:00 --job-name=dynapipe-report \
        --output=%x-%j.out --wrap "dynapipe-hpc report $(printf %q "$run")")
}
echo "preprocess $text, profile $profile, run $train, report $report"
