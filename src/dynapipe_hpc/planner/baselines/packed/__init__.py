"""Rules that lay samples end to end, as today's frameworks do."""
