"""Decoders of `transformers`, whose layers run as they are, and what they compute and need."""
