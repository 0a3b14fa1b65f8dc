"""Whole models of transformers, as a campaign."""
