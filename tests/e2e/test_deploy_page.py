"""docs/deploy.md, walked through word for word: every command of the page, in its order.

Hub and sites are real processes; what ends by itself is called in this one, which saves the start of another. What a
person does between commands is done here: handing files over, telling fingerprints, the same at every site. Only the
host of the page's address is another one, and its port.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.support.flower_federation import Federation, hub_port, lines_of

pytest.importorskip("flwr")

from kohort.cli.main import main
from kohort.crypto.identity.keys import load_identity
from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.config import read_plan
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.messages import RequestMessage, fresh_number, write_request

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
SITES = ("north", "south", "west")
ADDRESS = "hub.example.org:9092"


def section(title: str) -> str:
    """One section of the page."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str, begins: str) -> str:
    """The indented block of a section that begins with this line."""
    lines = section(title).splitlines()
    first = lines.index(f"    {begins}")
    length = next(n for n, line in enumerate([*lines[first:], "end"]) if line and not line.startswith("    "))
    return "\n".join(line[4:] for line in lines[first : first + length])


def commands(title: str) -> list[list[str]]:
    """The commands of a section, word by word."""
    found = re.findall(r"^    (kohort .*)$", section(title), flags=re.M)
    return [shlex.split(line, comments=True)[1:] for line in found]


@dataclass
class Walk:
    """A folder in which the commands are typed, and what their operators know."""

    root: Path
    made: Federation
    fingerprints: dict[str, str] = field(default_factory=dict)
    address: str = ""

    def type(self, words: list[str], printed: str = "") -> str:
        """One command as the page has it; `printed` is the fingerprint that stands where the page shortens one."""
        real = [self.address if word == ADDRESS else printed if word.endswith("…") else word for word in words]
        out = io.StringIO()
        with chdir(self.root), redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["kohort", *real])
            with pytest.raises(SystemExit) as ended:
                main()
        assert ended.value.code == 0, f"{real}\n{out.getvalue()}\n{self.made.logs()}"
        return out.getvalue().strip()

    def at(self, words: list[str], name: str) -> list[str]:
        """The same command at another site."""
        return [re.sub(r"\bnorth\b", name, word) for word in words]


def tables(root: Path) -> None:
    """Tables with the columns of the page, and its plan."""
    for number, name in enumerate((*SITES, "test")):
        random = np.random.default_rng(number)
        rows = 150
        age, dose = random.integers(18, 91, rows), random.normal(5.0, 2.0, rows).round(2)
        ill = age / 90 + dose / 10 > 1.1
        frame = {
            "patient": [f"{name}-{row}" for row in range(rows)],
            "age": age,
            "sex": random.choice(["f", "m"], rows),
            "zip": random.integers(10000, 99999, rows),
            "dose": dose,
            "ward": random.choice(["east", "west"], rows),
            "outcome": np.where(ill, "ill", "well"),
        }
        pl.DataFrame(frame).write_csv(root / f"{name}.csv")
    (root / "plan.toml").write_text(block("4 The plan", "[data]").replace('"test.csv"', f'"{root}/test.csv"'))


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    root = tmp_path_factory.mktemp("page")
    made = Federation(root, root / "plan.toml")
    tables(root)
    try:
        yield Walk(root, made, address=f"127.0.0.1:{hub_port()}")
    finally:
        made.close()


def found_and_join(walk: Walk) -> None:
    (init,) = commands("1 The hub")
    walk.fingerprints["hub"] = walk.type(init)
    shutil.copy(walk.root / "hub" / "invitation.json", walk.root / "invitation.json")  # handed to the sites
    (init,) = commands("2 Each site")
    for name in SITES:
        walk.fingerprints[name] = walk.type(walk.at(init, name), walk.fingerprints["hub"])
    add, *trusts = commands("3 Who trusts whom")
    assert [words[:3] for words in trusts] == [["site", "trust", "north"]] * 2
    for name in SITES:
        assert walk.type(walk.at(add, name), walk.fingerprints[name]) == walk.fingerprints[name]
        for words, peer in zip(trusts, [other for other in SITES if other != name], strict=True):
            walk.type([*words[:2], name, peer, words[4]], walk.fingerprints[peer])


def approve_and_run(walk: Walk) -> None:
    approve, sign, take = commands("4 The plan")
    walk.type(sign)
    for name in SITES:
        assert read_plan(walk.root / "plan.toml").digest() in walk.type(walk.at(approve, name))
        walk.type(walk.at(take, name))
    hub, site, run, status, *verify = commands("5 Run")
    walk.made.spawn("hub.process", *hub[:2], walk.root / hub[2])
    walk.made.wait_for(walk.made.reachable, "the SuperLink")
    for name in SITES:
        walk.made.spawn(name, *site[:2], walk.root / name)
    walk.type([*run, "--wait", "60"])
    assert walk.type(status).count("online") == len(SITES)
    walk.type(verify[0])
    for name in SITES:
        walk.type(walk.at(verify[1], name))


@pytest.mark.long
def test_the_page_is_right_word_for_word(walk: Walk) -> None:
    found_and_join(walk)
    approve_and_run(walk)
    assert verify_ledger(walk.root / "out").refusals == 0
    said = (walk.root / "north.log").read_text()
    assert f"waiting for the hub at {walk.address}; trusted peers: south, west" in said
    assert "connected; waiting for the hub to run a plan (1 approved plan)" in said


@pytest.mark.long
def test_letters_that_nobody_can_read_end_no_site(walk: Walk) -> None:
    """Over the real SuperLink: no letter, letters under no signature, and letters under a valid one."""
    if "hub.process" not in walk.made.processes:
        pytest.skip("the page was not walked through")
    hub = load_identity(walk.root / "hub" / "identity.key")
    asked = RequestMessage(site="north", fresh=fresh_number(), run="../..", task="prepare")
    letters = [b"", b"x" * 300, write_request(replace(asked, body=b"?" * 9), hub), write_request(asked, hub)[:-1]]
    with HubFolder(walk.root / "hub").backend(wait=60) as backend:
        for letter in letters:
            came = backend.run.exchange({backend.run.nodes["north"]: letter}, deadline=30)
            assert len(came) == 1, "the site did not answer"
    assert walk.made.processes["north"].poll() is None
    notes = [line for line in lines_of(walk.root / "north") if line["event"] == "note"]
    assert len(notes) >= 3
    walk.type(["ledger", "verify", "north"])


@pytest.mark.long
def test_keys_change_as_the_page_says(walk: Walk) -> None:
    if "hub.process" not in walk.made.processes:
        pytest.skip("the page was not walked through")
    rotate, add, revoke, trust = commands("6 Keys that change")
    walk.made.kill("north")
    old, new = walk.type(rotate).split()
    assert old == walk.fingerprints["north"]
    walk.type(add, new)
    for peer in ("south", "west"):
        walk.type([*revoke[:2], peer, revoke[3]], old)
        walk.type([*trust[:2], peer, *trust[3:]], new)
    walk.made.spawn("north", "site", "start", walk.root / "north")
    run = next(words for words in commands("5 Run") if words[0] == "run")
    walk.type([word if word != "out" else "again" for word in run] + ["--wait", "60"])
    walk.type(["ledger", "verify", "north"])


def test_the_settings_and_the_unit_of_the_page_are_valid() -> None:
    settings = tomllib.loads(block("2 Each site", "[site]"))
    assert {"site", "data", "policy", "limits"} == set(settings)
    unit = block("As services", "[Unit]")
    assert "Restart=on-failure" in unit
    prevented = re.search(r"RestartPreventExitStatus=([\d ]+)", unit)
    assert prevented is not None
    assert "6" not in prevented.group(1).split(), "a hub with a wrong bundle would end a site for good"
