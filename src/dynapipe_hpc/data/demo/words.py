"""The small vocabulary of the demo corpus."""

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jun",
    "Kim", "Lena", "Max", "Nora", "Otto", "Pia", "Rosa", "Sam", "Tess", "Uli",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "white", "black", "brown", "pink", "grey")
THINGS = (
    "apple", "bag", "ball", "boat", "book", "box", "chair", "clock", "coat", "cup",
    "door", "drum", "fork", "glove", "hat", "key", "lamp", "map", "pen", "shoe",
)  # fmt: skip
PLACES = ("attic", "barn", "cellar", "garden", "hall", "kitchen", "office", "shop", "tower", "yard")
SOUNDS = {
    "bear": "growls", "cat": "purrs", "cow": "moos", "dog": "barks", "fox": "yelps",
    "goat": "bleats", "hen": "clucks", "horse": "neighs", "owl": "hoots", "pig": "grunts",
}  # fmt: skip
ANIMALS = tuple(SOUNDS)
