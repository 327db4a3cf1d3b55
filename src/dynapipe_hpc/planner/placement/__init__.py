"""In: costs of layers. Out: placements of layers on stages to choose from."""
