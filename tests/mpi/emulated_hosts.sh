#!/usr/bin/env bash
# Starts a job of Open MPI over "hosts" of this machine:   tests/mpi/emulated_hosts.sh HOSTS RANKS_PER_HOST MPIEXEC COMMAND...
# Ranks of different hosts share no memory for MPI, and reach each other over TCP.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
n_hosts=$1 ranks_per_host=$2 mpiexec=$3
shift 3
hosts=$(seq -s, -f "host%.0f:$ranks_per_host" 0 $((n_hosts - 1)))
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_pml=ob1
launch=("$mpiexec" --host "$hosts" -n $((n_hosts * ranks_per_host))
    --map-by "ppr:$ranks_per_host:node:OVERSUBSCRIBE"
    --prtemca plm_ssh_agent "$here/emulated_host.sh" --prtemca plm_ssh_no_tree_spawn 1
    -x OMPI_MCA_btl_tcp_if_include -x OMPI_MCA_pml)
# mpiexec itself is on the first of the hosts.
exec "$here/emulated_host.sh" host0 "cd $(printf %q "$PWD"); exec $(printf '%q ' "${launch[@]}" "$@")"
