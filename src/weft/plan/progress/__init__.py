"""progress: what compiling a graph is at, as a stream of events, and the line on a terminal that shows it.

In: `tell`, called where something was done. Out: `following`, which hands each event to an observer; `shown`, whose observer draws.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.plan.progress.events import (
        CandidateBuilt,
        CandidateTimed,
        PieceWeighed,
        ProgressEvent,
        ProgressObserver,
        RegionDone,
        RegionStarted,
        following,
        observer,
        tell,
    )
    from weft.plan.progress.terminal import shown

__all__ = [
    "CandidateBuilt",
    "CandidateTimed",
    "PieceWeighed",
    "ProgressEvent",
    "ProgressObserver",
    "RegionDone",
    "RegionStarted",
    "following",
    "observer",
    "shown",
    "tell",
]

export_lazily(__name__)
