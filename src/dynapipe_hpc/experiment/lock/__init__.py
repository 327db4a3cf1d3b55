"""In: a folder and the ranks that write there. Out: no other process writes there meanwhile."""
