"""In: the bytes of a plan, where it was made. Out: the same bytes, where it is executed."""
