"""Faults at random moments of the real commands: kill -9, an interrupt, a full or read-only disk, a clock that goes
back, too little memory.

    python tests/support/faults.py                        600 cases on all processors
    python tests/support/faults.py --cases 60 --seed 3    other ones, fewer
    python tests/support/faults.py --only "dp run" --fault kill

A case is a command that meets one fault, and the same command again without it (`--resume` for a run). What must not
happen: a traceback, a native abort, a hang, an output that is there in part, a second attempt that fails, or one whose
output differs by a byte from that of a command that met no fault. A resumed run has the ledger of an uninterrupted one,
line by line, so no budget is refilled. The last line counts; exit 1 when any case failed.

A case is forked from a process that has imported everything and computed nothing. A full or read-only disk is a small
file system in memory that only the case sees (Linux, user namespaces); where that is not allowed, it is left out, and
the counts say so.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import fuzzing  # noqa: E402
from tests.support.spread import Cases  # noqa: E402

SECONDS = 120.0
INTERRUPTED = 130
PLAN = """[data]
table = "{table}"
target = "ill"
identifiers = ["who"]
features = ["age", "town"]
bounds = {{age = [73000, 73060]}}
categories = {{town = ["zqxnorth", "zqxsouth", "zqxwest"], ill = ["no", "yes"]}}
test = 0.3

[sites]
count = 4

[model]
kind = "logistic"

[train]
rounds = {rounds}
lr = 0.1
batch = 0
optimizer = "sgd"

[policy]
min_rows = 1

[method]
name = "fedavg"
{method}
"""
PLANS = {
    "run": (400, ""),
    "masked run": (6, 'secure = {sum = "masks"}'),
    "dp run": (60, "dp = {epsilon = 3.0, delta = 1e-4}"),
}
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: ("run", "{here}/" + name.replace(" ", "-") + ".toml", "--out", "{out}") for name in PLANS},
    "anonymize": ("anonymize", "{here}/t.csv", *fuzzing.ROLES, "--drop", "rest", "--k", "2", "--out", "{out}.csv"),
    "check": ("check", "{here}/t.parquet", *fuzzing.ROLES, "--json"),
    "gate": ("gate", "{here}/t.csv", *fuzzing.ROLES, "--rule", "k-anonymity", "--k", "2", "--out-shared", "{out}.csv"),
    "predict": ("predict", "{here}/finished", "{here}/t.csv", "--out", "{out}.csv"),
    "evaluate": ("evaluate", "{here}/finished", "{here}/t.csv", "--json"),
    "report": ("report", "{here}/finished", "--out", "{out}.html"),
    "audit": ("audit", "{here}/finished", "--json", "--out", "{out}"),
}  # fmt: skip
"""Commands by name; {out} is a file or folder that must be whole or absent."""
FAULTS = ("kill", "interrupt", "full", "read-only", "clock", "memory")
WEIGHTS = {"run": 6, "masked run": 6, "dp run": 6}
"""Commands with more moments are drawn more often."""
_LAST = {"run": ("model", "ledger"), "masked run": ("model", "ledger"), "dp run": ("model", "ledger")}
"""The parts of a run's folder that are the same bytes, however often it was interrupted."""
_VOLATILE = (".lock", "head.json", "results.jsonl")


class Reference(NamedTuple):
    """A command that met no fault: how long it took, what it printed and wrote."""

    seconds: float
    printed: bytes
    files: dict[str, str]
    size: int


class Fault(NamedTuple):
    """What happens, and when: after a share of the time that the command takes, or with a share of what it needs."""

    kind: str
    share: float


class Ended(NamedTuple):
    """Exit code (negative for a signal, None for a hang) and all that was printed."""

    code: int | None
    printed: bytes


def make_inputs(here: Path) -> None:
    """Write sound inputs, and a finished run."""
    fuzzing.write_texts(here)
    program = "import sys, polars as pl; pl.read_csv(sys.argv[1]).write_parquet(sys.argv[2])"
    subprocess.run([sys.executable, "-c", program, str(here / "t.csv"), str(here / "t.parquet")], check=True)
    for name, (rounds, method) in PLANS.items():
        text = PLAN.format(table=here / "t.csv", rounds=rounds, method=method)
        (here / f"{name.replace(' ', '-')}.toml").write_text(text)
    command = [sys.executable, "-m", "kohort.cli.main", "run", str(here / "plan.toml"), "--out", str(here / "finished")]
    subprocess.run(command, check=True, capture_output=True)


def files_of(name: str, out: Path) -> dict[str, str]:
    """The hash of every file that must come out alike."""
    kept = _LAST.get(name)
    found = {}
    for path in sorted(out.rglob("*")):
        place = path.relative_to(out)
        inside = kept is None or (len(place.parts) > 1 and place.parts[1] in kept)
        if path.is_file() and inside and path.name not in _VOLATILE:
            found[str(place)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def run(command: Sequence[str], folder: Path, *, within: Callable[[], None] = lambda: None,
        meanwhile: Callable[[int, float], bool] = lambda *_: False) -> Ended:  # fmt: skip
    """Run a command in a forked process.

    Args:
        command: The words after `kohort`.
        folder: Where it prints.
        within: What the new process does first.
        meanwhile: (process, seconds) -> whether something was done to it; asked until it was.
    """
    with (folder / "printed").open("w+b") as printed:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        child = os.fork()
        if child == 0:
            _child(command, folder, printed.fileno(), within)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        began, done_to_it = time.monotonic(), False
        while time.monotonic() < began + SECONDS:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                printed.seek(0)
                return Ended(os.waitstatus_to_exitcode(status), printed.read())
            done_to_it = done_to_it or meanwhile(child, time.monotonic() - began)
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        printed.seek(0)
        return Ended(None, printed.read())


def _child(command: Sequence[str], folder: Path, printed: int, within: Callable[[], None]) -> None:
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.chdir(folder)
    code = 1
    try:
        within()
        from kohort.cli.main import main

        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # until the command chooses
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
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


# How each fault comes about ------------------------------------------------------------------------------------------


def _signalled(number: signal.Signals, after: float) -> Callable[[int, float], bool]:
    def send(child: int, seconds: float) -> bool:
        if seconds < after:
            return False
        os.kill(child, number)
        return True

    return send


def _with_memory(more: int) -> Callable[[], None]:
    def limit() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))

    return limit


def _clock_back(after: float) -> Callable[[], None]:
    """From some moment on, every clock that tells the time of day is a day behind."""

    def patch() -> None:
        real, began = time.time, time.monotonic()

        def told() -> float:
            return real() - (86_400.0 if time.monotonic() - began > after else 0.0)

        for module in list(sys.modules.values()):
            for name in ("time", "time_ns") if getattr(module, "__name__", "").startswith("kohort") else ():
                if getattr(module, name, None) is (time.time if name == "time" else time.time_ns):
                    setattr(module, name, told if name == "time" else lambda: int(told() * 1e9))
        time.time = told  # type: ignore[assignment]

    return patch


_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_USERS, _PRIVATE, _READ_ONLY, _REMOUNT = 0x20000, 0x10000000, 0x44000, 1, 32


def small_disk(place: Path, size: int) -> None:
    """Put a small file system over a folder, seen by this process and its children alone.

    Raises:
        OSError: This system does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_MOUNTS | (_NEW_USERS if user else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _LIBC.mount(b"none", b"/", None, _PRIVATE, None)
    if _LIBC.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, f"size={max(size, 4096)}".encode()):
        raise OSError(ctypes.get_errno(), "mount")


def has_small_disks() -> bool:
    """Whether this system allows them."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            try:
                small_disk(Path(folder), 8192)
                (Path(folder) / "file").write_text("x")
                os._exit(0)
            except BaseException:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0


def on_small_disk(command: Sequence[str], folder: Path, out: Path, fault: Fault, before: Reference) -> Ended:
    """Run a command that writes to a disk that is full, or read-only from some moment on; `out` is as it was left."""
    size = int(before.size * fault.share) if fault.kind == "full" else 1 << 26
    child = os.fork()
    if child == 0:
        code = 1
        try:
            small_disk(out, size)
            after = fault.share * before.seconds

            def meanwhile(_: int, seconds: float) -> bool:
                if fault.kind == "full" or seconds < after:
                    return False
                _LIBC.mount(b"tmpfs", str(out).encode(), None, _REMOUNT | _READ_ONLY, None)
                return True

            ended = run(command, folder, meanwhile=meanwhile)
            shutil.copytree(out, folder / "left", symlinks=True)
            (folder / "ended").write_text(json.dumps(ended.code))
            code = 0
        finally:
            os._exit(code)
    os.waitpid(child, 0)
    if (folder / "left").is_dir():
        shutil.copytree(folder / "left", out, dirs_exist_ok=True)
    told = folder / "ended"
    code = json.loads(told.read_text()) if told.exists() else -signal.SIGABRT
    return Ended(code, (folder / "printed").read_bytes() if (folder / "printed").exists() else b"")


def meet(name: str, fault: Fault, before: Reference, words: Sequence[str], folder: Path) -> Ended:
    """Run a command that meets a fault."""
    after = fault.share * before.seconds
    match fault.kind:
        case "kill":
            return run(words, folder, meanwhile=_signalled(signal.SIGKILL, after))
        case "interrupt":
            return run(words, folder, meanwhile=_signalled(signal.SIGINT, after))
        case "clock":
            return run(words, folder, within=_clock_back(after))
        case "memory":
            return run(words, folder, within=_with_memory(int(fault.share * 1.2e9)))
    return on_small_disk(words, folder, folder / "out", fault, before)


# What must hold ------------------------------------------------------------------------------------------------------


def attempt(name: str, fault: Fault, here: Path, before: Reference, folder: Path) -> tuple[str, bytes] | None:
    """One case; what should not have happened and what was printed, or None."""
    out = folder / "out"
    out.mkdir()
    words = [word.format(here=here, out=out / "made") for word in COMMANDS[name]]
    first = meet(name, fault, before, words, folder)
    wrong = judged(name, fault, first, out)
    if wrong:
        return wrong, first.printed
    begun = (out / "made").is_dir() and name in PLANS
    again = [*words, "--resume"] if begun else [*words, "--force"] if _is_there(out) else words
    second = run(again, folder)
    if second.code != 0:
        return f"exit {second.code} without the fault afterwards", first.printed + b"\n--\n" + second.printed
    if differ := sorted(place for place, _ in files_of(name, out).items() ^ before.files.items()):
        told = "other files: " + ", ".join(dict.fromkeys(differ))
        return "the second attempt wrote something else", b"\n--\n".join((first.printed, second.printed, told.encode()))
    return None


def _is_there(out: Path) -> bool:
    return any(not path.name.startswith(".") for path in out.iterdir())


def judged(name: str, fault: Fault, ended: Ended, out: Path) -> str:
    """What should not have happened; empty when nothing did."""
    if ended.code is None:
        return "hang"
    if any(trace in ended.printed for trace in fuzzing.TRACES):
        return "traceback"
    expected = set(fuzzing.ALLOWED)
    expected |= {"kill": {-signal.SIGKILL}, "interrupt": {INTERRUPTED}}.get(fault.kind, set())
    if ended.code not in expected:
        return f"exit {ended.code}"
    if ended.code and fuzzing.CELLS.search(ended.printed):
        return "a cell in a message"
    files = [path for path in out.rglob("*") if path.is_file()]
    hidden = [path for path in files if path.name.startswith(".") and path.name != ".lock"]
    if hidden and fault.kind not in ("kill", "read-only"):  # nobody is left who could remove it
        return "a temporary file is left"
    visible = [path for path in files if path not in hidden and path.name != ".lock"]
    if not all(fuzzing._whole(path) or path.suffix == ".jsonl" for path in visible):
        return f"an output is there in part after exit {ended.code}"
    return ""


def _draw(draw: random.Random, names: Sequence[str], faults: Sequence[str]) -> tuple[str, Fault]:
    weighted = [name for name in names for _ in range(WEIGHTS.get(name, 2))]
    return draw.choice(weighted), Fault(draw.choice(faults), draw.random() * 1.1)


def reference(name: str, here: Path) -> Reference:
    """The command without any fault, the second time: what is calibrated or compiled once is there."""
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="kohort-faults-") as made:
            folder, began = Path(made), time.monotonic()
            (folder / "out").mkdir()
            words = [word.format(here=here, out=folder / "out" / "made") for word in COMMANDS[name]]
            ended = run(words, folder)
            took = time.monotonic() - began
            if ended.code != 0:
                raise SystemExit(f"{name} fails without any fault\n{ended.printed.decode(errors='replace')}")
            files = files_of(name, folder / "out")
            size = sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file())
    return Reference(took, ended.printed, files, size)


def _work(given: argparse.Namespace, here: Path) -> Counter[str]:
    fuzzing._import_everything()
    names = [name for name in COMMANDS if given.only in (None, name)]
    faults = [fault for fault in FAULTS if given.fault in (None, fault)]
    found: Counter[str] = Counter()
    if not has_small_disks():
        faults = [fault for fault in faults if fault not in ("full", "read-only")]
        found["(full and read-only disks: not allowed here)"] += 1
    known: dict[str, Reference] = {}
    draw = random.Random(given.seed)
    for number in range(given.cases):
        name, fault = _draw(draw, names, faults)
        if name not in known:
            known[name] = reference(name, here)
        with tempfile.TemporaryDirectory(prefix="kohort-faults-") as folder:
            wrong = attempt(name, fault, here, known[name], Path(folder))
        found[f"{name}, {fault.kind}"] += 1
        if wrong is not None:
            found[f"! {name}, {fault.kind}: {wrong[0]}"] += 1
            given.kept.mkdir(parents=True, exist_ok=True)
            said = f"{name}, {fault}: {wrong[0]}\n".encode() + wrong[1][-4000:]
            (given.kept / f"{given.seed}-{number}.txt").write_bytes(said)
    return found


CASES = Cases(
    name="faults",
    about="Faults at random moments of the real commands.",
    program=__file__,
    count=600,
    choices={"only": list(COMMANDS), "fault": FAULTS},
    make_inputs=make_inputs,
    work=_work,
)

if __name__ == "__main__":
    sys.exit(CASES.main())
