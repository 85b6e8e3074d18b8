"""Every signature has a purpose, and holds for no other."""

from __future__ import annotations

import re
from itertools import permutations
from pathlib import Path

from kohort.crypto.identity.parties import Identity
from kohort.purposes import Purpose, for_purpose

SOURCES = Path(__file__).parents[1] / "src" / "kohort"


def test_a_signature_holds_for_its_purpose_alone() -> None:
    ann = Identity.from_secret("ann", bytes(32))
    signatures = {purpose: ann.sign(b"words", purpose=purpose) for purpose in Purpose}
    for purpose, other in permutations(Purpose, 2):
        assert ann.public.signed(b"words", signatures[purpose], purpose=purpose)
        assert not ann.public.signed(b"words", signatures[purpose], purpose=other)


def test_no_purpose_begins_like_another() -> None:
    for one, other in permutations(Purpose, 2):
        assert not for_purpose(one, b"").startswith(for_purpose(other, b""))
        assert "\0" not in one


def test_the_sources_sign_for_listed_purposes_only() -> None:
    """The verifiers share no code with the writers: they spell the purposes themselves, as they are listed."""
    literal = re.compile(r"purpose=[\"']|_PURPOSE\b.* = [\"']")
    found = {path.name: path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")}
    spelled = {name: text for name, text in found.items() if literal.search(text)}
    assert set(spelled) == {"verify.py", "verify_results.py"}
    for text in spelled.values():
        for line in text.splitlines():
            if literal.search(line) and "_PURPOSE" in line:
                assert set(re.findall(r'"([^"]+)"', line)) <= set(Purpose)
