"""What holds strangers off: their text made harmless, their rate bounded. Pure."""
