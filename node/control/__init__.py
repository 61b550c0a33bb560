"""The line to the coordinator: client and session, decisions, members, addresses. Imports `links`,
`transports`, `system` and `traffic`.
"""
