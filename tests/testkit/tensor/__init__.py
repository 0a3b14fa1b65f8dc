"""Random tensor programs, and what tests of laws ask of them."""
