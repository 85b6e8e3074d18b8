"""A door for other people's Flower apps: a site's policy, ledger and budget under any ClientApp.

    from kohort import Policy
    from kohort.flower import door_mod, guarded

    app = guarded(theirs.app, door_mod(Policy(public=("rows", "loss")), "/srv/kohort/north"))

See docs/flower.md.
"""

from __future__ import annotations

from kohort.transport.flower.app_door import Noise, door_mod, guarded
from kohort.transport.flower.app_ledger import AppLedger

__all__ = ["AppLedger", "Noise", "door_mod", "guarded"]
