"""cli: the command line, `weft demo|explain|bench|doctor|cache|fuzz`; one file a command where it is more than a few lines."""
