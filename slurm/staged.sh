#!/bin/bash
# Runs dynapipe-hpc with copies of environment and dataset on the node's own disk. Stands at the end
# of LAUNCHER; the first rank of a node copies, the others wait for it.
#   tar -C "$VIRTUAL_ENV" -cf env.tar .
#   STAGE_ENV=env.tar STAGE_DATA=data/train.h5 LAUNCHER="srun --mpi=pmix slurm/staged.sh" \
#       sbatch ... slurm/run.sbatch CONFIG -o runs/NAME
set -euo pipefail

place=${STAGE_TO:-${TMPDIR:-/tmp}}/dynapipe-$SLURM_JOB_ID
mkdir -p -m 700 "$place"
[ -O "$place" ] || { echo "staged.sh: $place is somebody else's; set STAGE_TO" >&2; exit 2; }
exec 9> "$place/lock"
flock 9
if [ ! -e "$place/ready" ]; then
    mkdir -p "$place/env"
    tar -C "$place/env" -xf "$STAGE_ENV"
    cp "$STAGE_DATA" "$place"
    touch "$place/ready"
fi
exec 9>&-

[ "$1" = dynapipe-hpc ] || { echo "staged.sh: expected dynapipe-hpc, got $1" >&2; exit 2; }
exec "$place/env/bin/python" -m dynapipe_hpc "${@:2}" --set "data.dataset=$place/${STAGE_DATA##*/}"
