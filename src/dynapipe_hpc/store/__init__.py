"""In: the bytes of a plan on the rank that made it. Out: the same bytes on its executing rank."""
