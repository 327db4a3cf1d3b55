"""Baselines: planning methods for comparison with the search; nothing else needs them."""
