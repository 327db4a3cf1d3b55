#!/bin/sh
# Does an installed wheel plan, without any extra?
#   packaging/test_wheel.sh PYTHON
# PYTHON has the wheel, pytest, pytest-timeout and hypothesis; the tests are those of this folder.
set -eu
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# From a folder without sources, so that only the wheel can be found.
cd "$work"
"$python" -m dynapipe_hpc --help
"$python" -m dynapipe_hpc slurm-scripts job
cd job
echo '{"batches": [[5, 32, 9, 17, 100, 64]]}' > lengths.json
"$python" -m dynapipe_hpc plan configs/tiny_cpu.toml --set "planner.cost={kind='analytic'}" --lengths lengths.json --json plans.json

# Tests that need an extra are left out: those that read HDF5 or compare with torch.
cd "$root"
"$python" -m pytest -q -p no:cacheprovider tests/plan tests/planner tests/job/test_starter_files.py \
    --ignore=tests/planner/batch/test_row_length.py \
    --ignore=tests/planner/cost/table/test_profile_file.py \
    --ignore=tests/planner/cost/test_from_config.py \
    --ignore=tests/planner/test_plan_iteration.py
