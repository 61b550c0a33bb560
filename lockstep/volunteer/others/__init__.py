"""The others on a volunteer's machine: the person at it, and programs that are not ours."""
