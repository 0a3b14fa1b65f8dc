"""Programs for the rules of fusion and for safety."""
