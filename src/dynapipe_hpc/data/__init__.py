"""Samples and micro-batches. In: JSONL text. Out: HDF5 datasets and global batches of samples."""
