"""The chains and tables of docs/cascades-levels.md."""
