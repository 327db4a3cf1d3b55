"""In: an experiment on all ranks. Out: a cost table."""
