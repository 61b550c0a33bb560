"""The node that does not train: holds payloads of a run and forwards them. No torch."""
