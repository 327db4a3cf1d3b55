"""In: a simulated schedule. Out: the instructions of every rank, transfers placed."""
