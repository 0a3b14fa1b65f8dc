"""How many elements a block has room for on a GPU."""


def power_of_two(number: int) -> int:
    """Return the least power of two that is at least `number`: blocks have no other sizes there."""
    return 1 << max(0, number - 1).bit_length()
