"""Sections of the run file that have a module of their own; `protocol.runfile` has the others."""
