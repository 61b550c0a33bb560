"""The network: built, trained on, published. Imports `data` and `system`."""
