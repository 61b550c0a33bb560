"""What a node measures of its links, and when it tells the coordinator."""
