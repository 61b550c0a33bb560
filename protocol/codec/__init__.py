"""Bytes with one canonical form: payloads, commits, and what they are made of. Pure."""
