"""In: tensors of one rank. Out: the same tensors on another rank, or sums over ranks."""
