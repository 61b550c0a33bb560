"""A server of S3 on loopback, and the variables by which s3fs finds it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

SECRET = "never-to-be-shown-0123456789"
"""The password of the bucket: no log, error or status may hold it."""


class BucketServer:
    """One server of S3, whose address is known."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.variables = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "volunteer",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        """Environment of a process that may read and write."""

    def refuse_strangers(self) -> None:
        """From now on keys that the server has not made are refused."""
        self.let_in(0)

    def let_in(self, requests: float) -> None:
        """Any key is good for that many requests, in this process's servers to come as well."""
        address = f"{self.address}/moto-api/reset-auth"
        plain = {"Content-Type": "text/plain"}
        with urlopen(Request(address, str(requests).encode(), plain, method="POST"), timeout=30):
            pass


@contextmanager
def serving_bucket() -> Iterator[BucketServer]:
    """An empty server at a free port; needs moto."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        bucket = BucketServer(f"http://{host}:{port}")
        yield bucket
        bucket.let_in(math.inf)
    finally:
        server.stop()
