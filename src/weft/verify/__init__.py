"""verify: is this program equal to that one, and is this result good enough.

In: a tensor program and an applied block program (`verify`), two tensor programs (`equivalent`; `alike_on_numbers`, where that
refutes), or results beside eager's and fp64's (`judge`). Out: a `Verdict` with its error probability, or a `Judgement`. What cannot
be decided is not equal: a verifier fails closed.
"""

from weft.verify.field_check import Verdict, equivalent, verify
from weft.verify.judge import Draws, Judgement, judge
from weft.verify.rounding import Alike, alike_on_numbers

__all__ = ["Alike", "Draws", "Judgement", "Verdict", "alike_on_numbers", "equivalent", "judge", "verify"]
