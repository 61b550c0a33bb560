"""What one member is asked to do with a state when it is its turn: publish it, measure its loss."""
