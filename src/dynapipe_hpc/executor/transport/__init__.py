"""In: tensors of one rank. Out: the same tensors on another, or sums over ranks."""
