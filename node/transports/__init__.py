"""Reliable byte pipes between two machines: one interface, two implementations. May import
`node.system`.
"""
