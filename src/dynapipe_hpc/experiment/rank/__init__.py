"""In: a job and an experiment. Out: the worker of one rank."""
