"""The volunteer's side of a node: what its owner sees, and what its owner wishes."""
