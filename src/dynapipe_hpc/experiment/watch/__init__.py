"""In: positions of ranks in their plans. Out: the rank that hangs, and the job ended."""
