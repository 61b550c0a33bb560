"""The published rule of the audit of work: what evidence must show before a standing goes down."""
