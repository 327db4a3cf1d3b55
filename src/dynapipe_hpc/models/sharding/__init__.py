"""Layers, and the residual stream between them, cut over the shards of a stage."""
