"""The members: who they are, what they may, and what their keys have earned. Pure."""
