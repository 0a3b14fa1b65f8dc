"""The chains and tables of docs/measurements/cascades-levels.md."""
