#!/usr/bin/env bash
# Installs Slurm for these tests where that may be done; elsewhere says what is missing, and the
# tests are skipped. Nothing is configured: the tests bring a controller of their own.
set -euo pipefail
packages="slurm-wlm slurmctld slurmd slurm-client munge libpmix-dev"
pmix=$(find /usr/lib -name libpmix.so -print -quit 2>/dev/null || true)  # srun --mpi=pmix loads it
if command -v slurmctld slurmd srun munged >/dev/null && [ -n "$pmix" ]; then exit 0; fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && timeout 300 apt-get update -qq &&
    timeout 300 apt-get install -y -qq --no-install-recommends $packages >/dev/null; then
    exit 0
fi
echo "tests/slurm: Slurm is not installed, and cannot be from here; on Debian and Ubuntu:" >&2
echo "    sudo apt-get install --no-install-recommends $packages" >&2
