"""In: a seed. Out: a demo corpus to try things with."""
