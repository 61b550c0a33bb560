"""Prepared data that lie on a server: ranges fetched, verified, kept, and fetched beforehand."""
