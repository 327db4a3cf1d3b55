"""In: stage costs of a replica's micro-batches. Out: the order of passes, simulated."""
