"""cli: the command line, `weft demo|explain|bench|doctor|cache|fuzz`; longer commands have a file of their own."""
