"""Tests of the pages: they say what the code says, and lead where they point to."""
