"""Functions and models for tests of what a user calls."""
