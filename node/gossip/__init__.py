"""How payloads spread: offers, pulls, the payload log. Imports `links`, `transports`, `system`,
`traffic`.
"""
