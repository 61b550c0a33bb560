"""One module per command, named as it is typed. May import every other room but audit and wan."""
