"""Rounds that summers have added, as an audit reads them: an author's whole payload from its parts,
and ranges that are added again.
"""
