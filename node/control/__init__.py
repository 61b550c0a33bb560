"""The line to the coordinator: session, decisions, members, addresses. Imports `transports`,
`system`, `traffic`.
"""
