"""In: a rank's plan, a stage, a transport. Out: updated weights and a trace of the iteration."""
