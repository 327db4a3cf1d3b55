#!/usr/bin/env bash
# Runs the MPI tests, once per number of ranks:   tests/mpi/run.sh .venv/bin/mpiexec 1 2 4
# Which tests:   PYTEST_ARGS='tests/mpi/test_plan_store.py -m slow' tests/mpi/run.sh .venv/bin/mpiexec 2
# Rank 0 reports here, the others into build/tests-mpi/.
set -euo pipefail
mpiexec=$(realpath -s "$1")
sizes=("${@:2}")
cd "$(dirname "$0")/../.."
mkdir -p build/tests-mpi
# A folder of its own for every rank: pytest's cleanup of old ones does not bear company.
folders=$(mktemp -d)
trap 'rm -rf "$folders"' EXIT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
for size in "${sizes[@]}"; do
    echo "== $size ranks"
    # shellcheck disable=SC2016,SC2086
    "$mpiexec" -n "$size" sh -c '
        rank=${PMIX_RANK:-$PMI_RANK}
        export PYTEST_DEBUG_TEMPROOT="'"$folders"'/$rank"
        mkdir -p "$PYTEST_DEBUG_TEMPROOT"
        [ "$rank" = 0 ] || exec > "build/tests-mpi/rank-$rank-of-'"$size"'.txt" 2>&1
        exec "$@"' sh "${VENV:-.venv}/bin/python" -m mpi4py -m pytest -m "mpi and not slow" -q -p no:cacheprovider ${PYTEST_ARGS:-tests/mpi}
done
