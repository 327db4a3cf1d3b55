"""In: samples and the costs of their micro-batches. Out: the best plan of rules and search."""
