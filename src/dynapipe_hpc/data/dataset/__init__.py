"""In: an HDF5 file. Out: global batches of samples."""
