"""Chains of dependent reductions, and programs of the loops derived from them."""
