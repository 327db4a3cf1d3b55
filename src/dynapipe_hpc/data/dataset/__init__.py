"""In: an HDF5 dataset. Out: global batches of samples."""
