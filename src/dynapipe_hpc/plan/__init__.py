"""The border between planning and execution. In: nothing. Out: plans, as values, text, bytes."""
