"""Roles of the fields of block operators, of which renaming, liveness and whatever else treats all forms alike is made.

`weft.block.walk` reads them.
"""

from __future__ import annotations

from types import MappingProxyType

AXES = MappingProxyType({"role": "axes"})
"""Marks fields that are axes, or hold some."""
MAKES = MappingProxyType({"role": "makes"})
READS = MappingProxyType({"role": "reads"})
OVERWRITES = MappingProxyType({"role": "reads", "how": "overwrites"})
COPIES = MappingProxyType({"role": "reads", "how": "copies"})
SHARES = MappingProxyType({"role": "reads", "how": "shares"})
