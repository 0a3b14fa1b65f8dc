"""Conditions on indices, and the bands that they leave."""
