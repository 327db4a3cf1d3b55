#%Module
# For Environment Modules and Lmod, as .../modulefiles/dynapipe-hpc/VERSION. The two lines that a site
# changes are `root`, a virtual environment with the package, and `mpi`, the site's MPI modules.

set version 0.1.0
set root    /opt/dynapipe-hpc/$version
set mpi     {openmpi mpich cray-mpich intel-mpi}

proc ModulesHelp {} {
    puts stderr "dynapipe-hpc: pipeline-parallel training on samples of very different lengths."
    puts stderr "Batch scripts and examples: dynapipe-hpc slurm-scripts DIR"
}

module-whatis "dynapipe-hpc $version: pipeline-parallel training of language models"

conflict dynapipe-hpc
# One of them, loaded before: mpi4py looks for the library of the loaded module.
eval prereq $mpi

setenv       VIRTUAL_ENV $root
prepend-path PATH        $root/bin
