"""Mutants of placed programs: one operator at one place of what `apply` gives, and what stops them before they serve."""
