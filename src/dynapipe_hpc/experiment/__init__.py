"""In: a configuration. Out: a run, a profile or a simulation."""
