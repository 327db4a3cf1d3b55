"""Pipeline-parallel training on samples of very different lengths, as an MPI batch job.

The flow, which is also the reading order of the packages:

    config -> data -> batch -> plan -> store -> execute -> report
"""

__version__ = "0.1.0"
