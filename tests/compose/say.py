"""The story that a trial tells while it goes on."""

import time


def say(text: str) -> None:
    """Prints one line of the story with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
