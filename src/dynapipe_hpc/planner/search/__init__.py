"""In: the best plan that rules have found. Out: a better one, by local search."""
