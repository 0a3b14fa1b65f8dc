"""`python -m weft`: the command line, where the command `weft` is not on the path."""

from __future__ import annotations

from weft.cli.main import main

if __name__ == "__main__":
    main(prog_name="weft")
