"""A laboratory of network namespaces with shaped links.

It knows nothing of Lockstep but exit codes, error types and signals.
"""
