"""How payloads spread: offers, pulls, the log of payloads. Imports `links`, `transports`, `system`,
`traffic`."""
