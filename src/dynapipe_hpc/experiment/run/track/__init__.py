"""Trackers: programs of others that draw curves of runs."""
