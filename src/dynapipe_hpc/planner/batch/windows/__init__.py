"""In: samples in order. Out: what every micro-batch of neighbouring samples costs, as a table."""
