"""The plan of an iteration, chosen among those that were made."""
