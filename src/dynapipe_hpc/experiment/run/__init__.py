"""In: a worker per rank. Out: a run folder."""
