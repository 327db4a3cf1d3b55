"""Decoders of `transformers`, whose layers run as they are: what they hold, compute and need."""
