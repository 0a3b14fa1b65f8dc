"""verify: equality of programs, the magnitudes that they cover, and the error rule for results.

In: a tensor program and an applied block program (`verify`), two tensor programs (`equivalent`), two functions
(`weft.verify.separate`: an input that tells them apart), a tensor program and a candidate for its kernel (`Ranges`), or results
beside eager's and fp64's (`judge`). Out: a `Verdict`: what was shown, and whether the program may run, which are two things; what a
candidate has `Lost`; or a `Judgement`. What cannot be run is not equal: a verifier fails closed.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.verify.field_check import equivalent, verify
    from weft.verify.judge import Draws, Judgement, judge
    from weft.verify.ranges import Lost, Ranges
    from weft.verify.verdict import Aspect, Shown, Verdict, together

__all__ = [
    "Aspect",
    "Draws",
    "Judgement",
    "Lost",
    "Ranges",
    "Shown",
    "Verdict",
    "equivalent",
    "judge",
    "together",
    "verify",
]

export_lazily(__name__)
