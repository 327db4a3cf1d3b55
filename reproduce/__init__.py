"""The paper's experiments and ours, one file per figure; see reproduce/README.md."""
