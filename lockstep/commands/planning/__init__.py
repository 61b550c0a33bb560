"""What a plan is made of that is not in a run file."""
