"""Published checkpoints in the coordinator's directory: taken part by part, and checked."""
