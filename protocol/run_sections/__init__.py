"""Sections of the run file; `protocol.runfile` puts them together."""
