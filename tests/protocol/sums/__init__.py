"""Tests of sums that somebody makes for all."""
