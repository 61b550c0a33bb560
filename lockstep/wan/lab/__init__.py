"""A laboratory of network namespaces with shaped links. It knows nothing of Lockstep."""
