"""In: JSONL text. Out: an HDF5 dataset."""
