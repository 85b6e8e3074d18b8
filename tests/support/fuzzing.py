"""Fuzzing: damaged inputs of every kind through the real commands, each in a process of its own.

    python tests/support/fuzzing.py                      10,000 cases on all processors
    python tests/support/fuzzing.py --cases 500 --seed 3 other ones, fewer
    python tests/support/fuzzing.py --only parquet       one kind of input

A case is a sound file with a few random changes, and a command that reads it. What must not happen: a traceback or a
trace of a native library, exit 1, an abort, a hang, an output that is there in part or beside an error, and a cell of
the table in what is printed. What failed is kept in out/fuzz; after it is mended it belongs into tests/fixtures/fuzz,
which `tests/cli/test_fuzz_corpus.py` runs. The last line counts; exit 1 when any case failed.

A case is forked from a process that has imported everything and computed nothing, so that it starts at once and has
threads of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.spread import Cases  # noqa: E402

SECONDS = 60.0
CELLS = re.compile(rb"zqx|\b73[0-9]{3}\b")
"""Every cell but the target's, whose classes a run names, is one of these: no message can hold one by chance."""
TRACES = (b"Traceback", b"panicked at", b"thread '", b"RUST_BACKTRACE", b"a bug in kohort", b"memory allocation of")
ALLOWED = {0, 2, 3, 4, 5, 6, 7}

PLAN = """[data]
table = "{table}"
target = "ill"
identifiers = ["who"]
features = "rest"
missing = "impute"
test = 0.3

[sites]
count = 3
split = "iid"

[policy]
min_rows = 1
min_cell = 1

[method]
name = "additive"
rounds = 3
min_bin = 6
"""
SCHEMA = 'quasi = ["age", "town"]\nsensitive = ["ill"]\nidentifiers = ["who"]\n[reading]\nnull_values = ["-9"]\n'
HIERARCHY = "zqxnorth;cold;*\nzqxsouth;warm;*\nzqxwest;warm;*\n"
MAPPING = '[tables.other]\n"Town" = "town"\n[values.town]\n"Zqxnorth" = "zqxnorth"\n'
ROLES = ("--quasi", "age,town", "--sensitive", "ill", "--identifiers", "who")

# Kinds of inputs, how often each is drawn, and the commands that read one. {file} is the damaged input, {out} a file
# that must be whole or absent, {run} the folder of a run with one damaged file, {here} the folder of sound inputs.
COMMANDS: dict[str, tuple[int, tuple[tuple[str, ...], ...]]] = {
    "csv": (24, (
        ("check", "{file}", *ROLES, "--json"),
        ("anonymize", "{file}", *ROLES, "--drop", "rest", "--k", "2", "--out", "{out}.csv"),
        ("gate", "{file}", *ROLES, "--rule", "k-anonymity", "--k", "2", "--out-shared", "{out}.parquet"),
        ("init", "{file}", "--out", "{out}.toml"),
        ("predict", "{here}/run", "{file}", "--out", "{out}.csv"),
    )),
    "parquet": (20, (
        ("check", "{file}", *ROLES),
        ("anonymize", "{file}", *ROLES, "--drop", "rest", "--k", "2", "--out", "{out}.parquet"),
        ("gate", "{file}", *ROLES, "--rule", "l-diversity", "--l", "2", "--out-shared", "{out}.csv"),
        ("evaluate", "{here}/run", "{file}", "--json"),
    )),
    "arrow": (4, (
        ("check", "{file}", *ROLES, "--json"),
        ("gate", "{file}", *ROLES, "--rule", "k-anonymity", "--k", "2", "--out-kept", "{out}.arrow"),
    )),
    "plan": (14, (("run", "{file}", "--out", "{out}"), ("plan", "explain", "{file}"))),
    "schema": (8, (("check", "{here}/t.csv", "--schema", "{file}", "--json"),)),
    "hierarchy": (8, (
        ("anonymize", "{here}/t.csv", *ROLES, "--k", "2", "--hierarchy", "town={file}", "--out", "{out}.csv"),
    )),
    "mapping": (6, (("harmonise", "{here}/t.csv", "{here}/other.csv", "--mapping", "{file}", "--out", "{out}.toml"),)),
    "ledger": (6, (
        ("ledger", "verify", "{run}"),
        ("ledger", "show", "{run}"),
        ("report", "{run}", "--out", "{out}.html"),
    )),
    "model": (8, (
        ("predict", "{run}", "{here}/t.csv", "--out", "{out}.csv"),
        ("explain", "{run}", "--json"),
        ("evaluate", "{run}", "{here}/t.csv"),
    )),
    "letter": (20, (("letter",),)),
}  # fmt: skip
SEEDS = {
    "csv": "t.csv", "parquet": "t.parquet", "arrow": "t.arrow", "plan": "plan.toml", "schema": "schema.toml",
    "hierarchy": "town.csv", "mapping": "mapping.toml", "letter": "letter.bin",
}  # fmt: skip
TEXTS = {"csv", "plan", "schema", "hierarchy", "mapping", "ledger", "model"}
WORDS = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"'", b"\n", b"\r\n", b",,", b";", b"nan", b"inf", b"-1",
    b"0", b"1e999", b"99999999999999999999", b"[[", b"]", b"{", b"}", b"[" * 300, b'"""', b"= = =", b"true", b"null",
    b"\\", b"../../x", b"9007199254740993", b"-0.0", b"\xc3\x28", b"\t" * 40, b"NaN", b"1_000", b"2026-13-45",
)  # fmt: skip


class Case(NamedTuple):
    """A damaged input, what it was made from, and the command that reads it."""

    kind: str
    name: str
    content: bytes
    command: tuple[str, ...]


class Failed(NamedTuple):
    """What should not have happened, and what was printed."""

    what: str
    printed: bytes


def write_texts(here: Path) -> None:
    """Write sound inputs of the kinds that are text."""
    draw = random.Random(1)
    lines = ["who,age,town,ill"]
    for row in range(120):
        town, ill = draw.choice(["north", "south", "west"]), draw.choice(["yes", "no"])
        lines.append(f"zqx{row},{73000 + draw.randrange(60)},zqx{town},{ill}")
    (here / "t.csv").write_text("\n".join(lines) + "\n")
    (here / "other.csv").write_text("\n".join(lines).replace("town", "Town", 1) + "\n")
    (here / "plan.toml").write_text(PLAN.format(table=here / "t.csv"))
    (here / "schema.toml").write_text(SCHEMA)
    (here / "town.csv").write_text(HIERARCHY)
    (here / "mapping.toml").write_text(MAPPING)


def make_inputs(here: Path) -> None:
    """Write sound inputs of every kind, a finished run among them, by the commands that write them."""
    write_texts(here)
    program = (
        "import sys, polars as pl; t = pl.read_csv(sys.argv[1]); t.write_parquet(sys.argv[2]); t.write_ipc(sys.argv[3])"
    )
    subprocess.run(
        [sys.executable, "-c", program, *(str(here / name) for name in ("t.csv", "t.parquet", "t.arrow"))], check=True
    )
    subprocess.run(
        [sys.executable, "-m", "kohort.cli.main", "run", str(here / "plan.toml"), "--out", str(here / "run")],
        check=True,
        capture_output=True,
    )
    _write_letter(here / "letter.bin")


def _write_letter(path: Path) -> None:
    """A request to a site without its signature: damage is signed afterwards, as a lying hub would."""
    program = """
import sys, numpy as np
from pathlib import Path
from kohort.crypto.identity.parties import Identity
from kohort.protocol.wire import Payload, encode
from kohort.transport.messages import SIGNATURE, RequestMessage, write_request
body = encode(Payload(arrays={"weights": np.arange(9.0)}, metrics={"rows": 3}, blobs={"seed": b"12"}))
message = RequestMessage(site="north", fresh="1", run="r", task="train", body=body, plan=b"{}")
Path(sys.argv[1]).write_bytes(write_request(message, Identity.generate("hub"))[:-SIGNATURE])
"""
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def damaged(content: bytes, other: bytes, draw: random.Random, *, text: bool) -> bytes:
    """The content with one to four changes: bits, bytes, pieces, lines, numbers, or a piece of another input."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        change = draw.choice(_TEXT_CHANGES if text else _CHANGES)
        change(found, other, draw)
    return bytes(found)


def _flip(found: bytearray, _: bytes, draw: random.Random) -> None:
    if found:
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)


def _replace(found: bytearray, _: bytes, draw: random.Random) -> None:
    if found:
        found[draw.randrange(len(found))] = draw.randrange(256)


def _piece(found: bytearray, draw: random.Random) -> slice:
    start = draw.randrange(len(found) + 1)
    return slice(start, min(len(found), start + draw.choice((1, 4, 16, 200))))


def _remove(found: bytearray, _: bytes, draw: random.Random) -> None:
    del found[_piece(found, draw)]


def _repeat(found: bytearray, _: bytes, draw: random.Random) -> None:
    piece = _piece(found, draw)
    found[piece.start : piece.start] = found[piece] * draw.choice((1, 2, 50))


def _cut(found: bytearray, _: bytes, draw: random.Random) -> None:
    del found[draw.randrange(len(found) + 1) :]


def _insert(found: bytearray, _: bytes, draw: random.Random) -> None:
    place = draw.randrange(len(found) + 1)
    found[place:place] = draw.choice(WORDS)


def _splice(found: bytearray, other: bytes, draw: random.Random) -> None:
    found[_piece(found, draw)] = other[draw.randrange(len(other) + 1) :][: draw.choice((1, 30, 400))]


def _line(found: bytearray, _: bytes, draw: random.Random) -> None:
    lines = bytes(found).split(b"\n")
    place, to = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(3):
        case 0:
            del lines[place]
        case 1:
            lines.insert(to, lines[place])
        case _:
            lines[place], lines[to] = lines[to], lines[place]
    found[:] = b"\n".join(lines)


def _number(found: bytearray, _: bytes, draw: random.Random) -> None:
    numbers = list(re.finditer(rb"\d+(\.\d+)?|true|false|\"[a-z_]+\"", bytes(found)))
    if numbers:
        one = draw.choice(numbers)
        found[one.start() : one.end()] = draw.choice(WORDS)


_CHANGES = (_flip, _flip, _flip, _replace, _remove, _repeat, _cut, _insert, _splice)
_TEXT_CHANGES = (*_CHANGES, _line, _line, _number, _number, _number)


def cases(here: Path, seed: int, count: int, only: str | None) -> Iterator[Case]:
    """Draw cases; the same seed gives the same ones."""
    draw = random.Random(seed)
    kinds = [kind for kind, (weight, _) in COMMANDS.items() for _ in range(weight) if only in (None, kind)]
    files = sorted(str(path.relative_to(here / "run")) for path in (here / "run").rglob("*") if path.is_file())
    run_files = {kind: [name for name in files if kind in name] for kind in ("ledger", "model")}
    everything = [(here / name).read_bytes() for name in SEEDS.values()]
    for _ in range(count):
        kind = draw.choice(kinds)
        name = SEEDS[kind] if kind in SEEDS else draw.choice(run_files[kind])
        sound = (here / name if kind in SEEDS else here / "run" / name).read_bytes()
        content = damaged(sound, draw.choice(everything), draw, text=kind in TEXTS)
        yield Case(kind, name, content, draw.choice(COMMANDS[kind][1]))


def attempt(case: Case, here: Path, folder: Path) -> Failed | None:
    """Run one case in an empty folder; what should not have happened, or None."""
    out = folder / "out"
    out.mkdir()
    names = {"file": folder / case.name, "here": here, "out": out / "made", "run": folder / "run"}
    if case.kind in ("ledger", "model"):
        shutil.copytree(here / "run", folder / "run")
        (folder / "run" / case.name).write_bytes(case.content)
    else:
        (folder / case.name).write_bytes(case.content)
    command = [word.format(**names) for word in case.command]
    code, printed = _forked(command, case, folder)
    for place in (folder, here):  # their random names may look like a cell
        printed = printed.replace(os.fsencode(place), b"FOLDER")
    return judged(code, printed, out, case)


def _forked(command: Sequence[str], case: Case, folder: Path) -> tuple[int | None, bytes]:
    """Exit code (negative for a signal, None for a hang) and all that was printed."""
    with (folder / "printed").open("w+b") as printed:
        child = os.fork()
        if child == 0:
            _child(command, case, folder, printed.fileno())
        ended = time.monotonic() + SECONDS
        while time.monotonic() < ended:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                printed.seek(0)
                return os.waitstatus_to_exitcode(status), printed.read()
            time.sleep(0.003)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        printed.seek(0)
        return None, printed.read()


def _child(command: Sequence[str], case: Case, folder: Path, printed: int) -> None:
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.chdir(folder)
    code = 1
    try:
        if command[0] == "letter":
            code = _read_letter(case.content)
        else:
            from kohort.cli.main import main

            sys.argv = ["kohort", *command]
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException as error:
        print(f"Traceback: {type(error).__name__}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _read_letter(content: bytes) -> int:
    """Read a signed request and its payload, a bundle, and bytes that nobody signed; errors of kohort may come out."""
    from kohort.crypto.identity.parties import Identity
    from kohort.errors import KohortError
    from kohort.protocol.wire import decode
    from kohort.purposes import Purpose
    from kohort.transport.messages import read_request, split_messages

    hub = Identity.generate("hub")
    signed = content + hub.sign(content, purpose=Purpose.REQUEST)
    code = 0
    for read in (
        lambda: read_request(signed, hub=hub.public).request,
        lambda: read_request(content, hub=hub.public),
        lambda: decode(content),
        lambda: split_messages(content),
    ):
        try:
            read()
        except KohortError as error:
            code = error.exit_code
    return code


def judged(code: int | None, printed: bytes, out: Path, case: Case) -> Failed | None:
    """What should not have happened, by exit code, what was printed and the files in `out`; or None."""
    if code is None:
        return Failed("hang", printed)
    if code < 0:
        return Failed(f"abort ({signal.Signals(-code).name})", printed)
    if code not in ALLOWED or any(trace in printed for trace in TRACES):
        return Failed(f"traceback or exit {code}", printed)
    # harmonise is asked to show how tables at hand spell their values, and explain what a model knows of them.
    asked_for = case.kind == "mapping" or (case.command[0] == "explain" and code == 0)
    if not asked_for and CELLS.search(printed):
        return Failed("a cell in a message", printed)
    left = sorted(path for path in out.rglob("*") if path.is_file())
    # A run that ends after something left its sites keeps its ledgers, which say so.
    if code != 0 and left and not (case.command[0] == "run" and code in (4, 5)):
        return Failed(f"{len(left)} output files beside exit {code}", printed)
    if any(path.name.startswith(".") and path.name != ".lock" for path in left):
        return Failed("a temporary file is left", printed)
    return Failed("an output cannot be read", printed) if not all(_whole(path) for path in left) else None


def _whole(path: Path) -> bool:
    content = path.read_bytes()
    try:
        match path.suffix:
            case ".json":
                json.loads(content)
            case ".jsonl":
                [json.loads(line) for line in content.splitlines()]
                return len(content) > 0 or path.name == "receipts.jsonl"  # none was issued yet
            case ".parquet":
                return content[-4:] == b"PAR1"
            case ".arrow":
                return content[:6] == b"ARROW1" == content[-6:]
            case ".csv" | ".toml":
                return content.endswith(b"\n")
    except ValueError:
        return False
    return len(content) > 0


def _import_everything() -> None:
    """Import all of kohort; nothing is computed, so that forked processes start threads of their own."""
    import kohort

    for module in pkgutil.walk_packages(kohort.__path__, "kohort."):
        if not re.search(r"\.(torch|flower|studies|testing|sources)(\.|$)", module.name):
            importlib.import_module(module.name)


def _work(given: argparse.Namespace, here: Path) -> Counter[str]:
    _import_everything()
    seed, kept = given.seed, given.kept
    found: Counter[str] = Counter()
    for number, case in enumerate(cases(here, seed, given.cases, given.only)):
        with tempfile.TemporaryDirectory(prefix="kohort-fuzz-") as folder:
            failed = attempt(case, here, Path(folder))
        found[case.kind] += 1
        if failed is not None:
            found[f"! {failed.what}"] += 1
            name = f"{case.kind}-{seed}-{number}"
            kept.mkdir(parents=True, exist_ok=True)
            (kept / f"{name}{Path(case.name).suffix}").write_bytes(case.content)
            (kept / f"{name}.txt").write_bytes(
                f"{failed.what}\n{case.name}: kohort {' '.join(case.command)}\n".encode() + failed.printed[-4000:]
            )
    return found


CASES = Cases(
    name="fuzz",
    about="Damaged inputs through the real commands.",
    program=__file__,
    count=10_000,
    choices={"only": list(COMMANDS)},
    make_inputs=make_inputs,
    work=_work,
)

if __name__ == "__main__":
    sys.exit(CASES.main())
