"""The gRPC service: sessions of nodes, unary calls, and the bounds of both."""
