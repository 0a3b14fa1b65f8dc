"""Collections of cycles are put off, whatever the user froze."""

import gc

from weft import garbage


def test_frozen_objects_are_counted_once_and_stay_frozen(monkeypatch):
    """Python counts a million of them for 20 ms, and each graph that is compiled would have it do so."""
    asked = list[int]()

    def counted() -> int:
        asked.append(1)
        return 5

    monkeypatch.setattr(gc, "get_freeze_count", counted)
    monkeypatch.setattr(gc, "unfreeze", lambda: asked.append(-1))
    monkeypatch.setitem(garbage._seen, "frozen", False)
    for _ in range(3):
        with garbage.uncollected():
            assert not gc.isenabled()
        assert gc.isenabled()
    assert asked == [1]


def test_what_was_made_meanwhile_is_old_afterwards(monkeypatch):
    asked = list[str]()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: asked.append("unfreeze"))
    monkeypatch.setitem(garbage._seen, "frozen", False)
    with garbage.uncollected():
        pass
    assert asked == ["freeze", "unfreeze"]
