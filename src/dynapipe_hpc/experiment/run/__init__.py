"""In: an experiment on all ranks. Out: a run folder."""
