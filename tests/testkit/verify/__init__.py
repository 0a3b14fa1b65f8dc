"""Drawn functions, and faults for the checks to find."""
