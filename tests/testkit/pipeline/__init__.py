"""What tests of the pipeline share."""
