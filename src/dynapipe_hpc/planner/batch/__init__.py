"""In: the samples of one iteration. Out: micro-batches, one list per replica."""
