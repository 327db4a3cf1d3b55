"""In: a worker per rank. Out: a cost table."""
