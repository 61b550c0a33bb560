"""A node's measurements of its links, and the reports of them to the coordinator."""
