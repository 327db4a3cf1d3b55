"""Ways to plan that the method is compared with; nothing else needs them."""
