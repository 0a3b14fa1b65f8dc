"""Roles of the fields of block operators, of which renaming, liveness and whatever else treats all forms alike is made.

`weft.block.walk` reads them; fields that hold axes have `weft.block.ranges.AXES`.
"""

from __future__ import annotations

from types import MappingProxyType

MAKES = MappingProxyType({"role": "makes"})
READS = MappingProxyType({"role": "reads"})
OVERWRITES = MappingProxyType({"role": "reads", "how": "overwrites"})
COPIES = MappingProxyType({"role": "reads", "how": "copies"})
SHARES = MappingProxyType({"role": "reads", "how": "shares"})
