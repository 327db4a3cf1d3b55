"""In: the samples of one iteration. Out: one checked plan per rank."""
