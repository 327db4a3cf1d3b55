"""In: a stage's module and its micro-batches. Out: exact losses, gradients, optimizer steps."""
