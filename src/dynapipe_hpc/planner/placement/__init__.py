"""In: costs of layers. Out: the layers of every stage."""
