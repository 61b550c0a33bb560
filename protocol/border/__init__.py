"""The border against strangers: their text is made harmless, their rate bounded. Pure."""
