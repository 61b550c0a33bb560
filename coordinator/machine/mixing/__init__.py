"""Runs whose nodes mix parameters: the edges of a round, and how far members are apart. Pure."""
