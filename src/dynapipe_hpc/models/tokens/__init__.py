"""In: the samples of a micro-batch. Out: tensors of tokens, padded or packed."""
