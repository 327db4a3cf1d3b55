"""In: sizes of a model. Out: what its parts hold, compute and keep for backward, by family."""
