"""The validation loss of a run, measured by members in turn. Pure."""
