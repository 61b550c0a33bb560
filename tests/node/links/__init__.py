"""Tests of the links; the shared cases fail with values, like every test."""

import pytest

pytest.register_assert_rewrite("tests.node.transports.conformance")
