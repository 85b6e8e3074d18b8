"""A forger of ledgers who knows the formats and has fresh keys, but none of the real ones.

What he writes holds together by itself: hashes, chains, receipts, heads and closing lines are made anew.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kohort.crypto.identity.parties import Identity
from kohort.crypto.identity.signers import signer_of
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.ledger.results import bind_results
from kohort.privacy.ledger.signing import Signer
from kohort.purposes import Purpose

Lines = list[dict[str, Any]]
START = "0" * 64


def read(path: Path) -> Lines:
    return [json.loads(raw) for raw in path.read_bytes().splitlines()]


def hashed(line: dict[str, Any]) -> tuple[bytes, str]:
    """The line with a hash that fits it."""
    fields = {key: value for key, value in line.items() if key != "hash"}
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)[:-1]
    own = hashlib.blake2b(body.encode(), digest_size=32).hexdigest()
    return f'{body},"hash":"{own}"}}\n'.encode(), own


def fresh_signer(number: int, name: str = "user") -> Signer:
    return signer_of(Identity.from_secret(name, number.to_bytes(48, "big")))


class Forgery:
    """A ledger folder, its lines changed, to be signed again with fresh keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = read(folder / "ledger.jsonl")
        self.head = json.loads((folder / "head.json").read_bytes())

    def sign(self, signer: Signer, *, keys: Signer | None = None) -> None:
        """Write everything anew: chains, receipts, head, and the closing line if there is one."""
        keys = keys or signer
        chains: dict[str, list[Any]] = {}
        raw, order, by_request = [], [], {}
        receipt_at: dict[str, str] = {}
        receipts: list[bytes] = []
        last = START
        for line in self.lines:
            site = line["site"]
            length, prev = chains.get(site, [0, START])
            text, own = hashed({**line, "seq": length, "prev": prev, "receipt": receipt_at.get(site, "")})
            chains[site] = [length + 1, own]
            raw.append(text)
            order.append(own)
            if line["event"] in {"release", "refusal"}:
                by_request.setdefault(line["request"], {})[site] = [site, length + 1, own]
        for number, (request, ends) in enumerate(by_request.items()):
            heads = hashlib.blake2b(canonical([ends[s] for s in sorted(ends)]).encode(), digest_size=32).hexdigest()
            statement = canonical([last, request, heads]).encode()
            made: dict[str, Any] = {"version": 2, "seq": number, "prev": last, "request": request, "sites": len(ends)}
            made |= {"heads": heads, "site_signature": keys.sign(heads.encode(), purpose=Purpose.LEDGER_HEAD)}
            made |= {"hub_signature": keys.sign(statement, purpose=Purpose.RECEIPT)}
            line_text, last = hashed(made)
            receipts.append(line_text)
        (self.folder / "ledger.jsonl").write_bytes(b"".join(raw))
        (self.folder / "receipts.jsonl").write_bytes(b"".join(receipts))
        said = {
            **{key: value for key, value in self.head.items() if key != "signature"},
            "version": 2,
            "chains": chains,
            "order": hashlib.blake2b("".join(order).encode(), digest_size=32).hexdigest(),
            "receipts": [len(receipts), last],
            "site_key": keys.public,
            "hub_key": keys.public,
            "signer": signer.record,
        }
        signature = signer.sign(canonical(said).encode(), purpose=Purpose.LEDGER_HEAD)
        (self.folder / "head.json").write_text(canonical({**said, "signature": signature}) + "\n")
        results = self.folder / "results.jsonl"
        if results.is_file():
            results.unlink()
            bind_results(self.folder.parent, signer=signer, run=str(said["run"]), last={})


def soften(lines: Lines, chance: random.Random) -> None:
    """Claim less than what left."""
    releases = [line for line in lines if line["event"] == "release"]
    line = chance.choice(releases)
    line["guarantee"], line["rows"] = {"kind": "public", "what": "row count"}, 1


def forget_training(lines: Lines, chance: random.Random) -> None:
    """Delete every line of one task."""
    tasks = sorted({line["what"] for line in lines if line["event"] == "release"})
    task = chance.choice(tasks)
    lines[:] = [line for line in lines if line.get("what") != task]


def cut_end(lines: Lines, chance: random.Random) -> None:
    opened = max(number for number, line in enumerate(lines) if line["event"] == "open") + 1
    del lines[chance.randrange(opened, len(lines)) :]


def drop_one(lines: Lines, chance: random.Random) -> None:
    del lines[chance.choice([number for number, line in enumerate(lines) if line["event"] != "open"])]


def shrink(lines: Lines, chance: random.Random) -> None:
    chance.choice([line for line in lines if line["event"] == "release"])["size"] = 1


def move(lines: Lines, chance: random.Random) -> None:
    places = [number for number, line in enumerate(lines) if line["event"] != "open"]
    one, other = chance.sample(places, 2)
    lines[one], lines[other] = lines[other], lines[one]


def rename(lines: Lines, chance: random.Random) -> None:
    """One site's chain in another's place."""
    names = sorted({line["site"] for line in lines})
    if len(names) == 1:
        names.append("elsewhere")
    one, other = chance.sample(names, 2)
    swap = {one: other, other: one}
    for line in lines:
        line["site"] = swap.get(line["site"], line["site"])


MANIPULATIONS: list[Callable[[Lines, random.Random], None]] = [
    soften, forget_training, cut_end, drop_one, shrink, move, rename,
]  # fmt: skip


def manipulated(source: Path, target: Path, number: int) -> str:
    """A copy of a run or site folder with one random manipulation, signed again in every second case.

    Returns:
        What was done, for messages.
    """
    chance = random.Random(number)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    forgery = Forgery(target / "ledger")
    change = chance.choice(MANIPULATIONS)
    change(forgery.lines, chance)
    if number % 2:
        forgery.sign(fresh_signer(number + 1))
        return f"{number}: {change.__name__}, signed with a fresh key"
    place = forgery.folder / "ledger.jsonl"
    rehash = chance.random() < 0.5  # hashes need no key
    if rehash:
        kept = {name: (forgery.folder / name).read_bytes() for name in ("head.json", "receipts.jsonl")}
        closing = forgery.folder / "results.jsonl"
        kept |= {"results.jsonl": closing.read_bytes()} if closing.is_file() else {}
        forgery.sign(fresh_signer(number + 1))
        for name, content in kept.items():
            (forgery.folder / name).write_bytes(content)
    else:
        text = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in forgery.lines)
        place.write_text(text, encoding="utf-8")
    return f"{number}: {change.__name__}, {'hashed again' if rehash else 'plain'}"
