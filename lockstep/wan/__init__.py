"""`lockstep wan`: a cluster on home links between network namespaces, built by `lockstep.wan.lab`.

May import `lockstep.cluster` and the modules below it, but no command.
"""
