"""In: samples and what their micro-batches cost. Out: the best plan found by rules and search."""
