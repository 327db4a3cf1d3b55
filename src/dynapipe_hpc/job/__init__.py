"""In: a started process. Out: ranks that agree with each other and end together."""
