"""In: shapes of micro-batches. Out: time and memory of every pipeline stage."""
