"""Choice of an iteration's plan among the plans that were made."""
