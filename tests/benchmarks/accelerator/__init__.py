"""What is to be measured on the day on which a graphics card is at hand: see `__main__`."""
