"""Opaque operations, and a backend that keeps what was captured."""
