"""In: a file of measured costs. Out: a checked table of them."""
