"""The rules of a run, one file each: what an event changes, and what follows from it."""
