"""In: a seed. Out: a corpus to try things with."""
