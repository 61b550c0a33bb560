"""The study of local steps: unlike speeds, overlap, H and k, and the best rate."""
