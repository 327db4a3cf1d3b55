"""In: a rank's plan, a stage, a transport. Out: trained weights and a trace of the iteration."""
