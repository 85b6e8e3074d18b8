"""Forged ledgers and changed results, as an auditor meets them at the command line: none is sound."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.support.forger import Forgery, fresh_signer, manipulated

from kohort.crypto.identity.user import user_identity, user_pins
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.ledger.results import bind_results

Call = Callable[..., tuple[int, str, str]]
GOLDEN = Path(__file__).parents[1] / "golden" / "run-v1"
THOROUGH = settings.default is settings.get_profile("thorough")
TRIALS, MANIPULATED = (25, 200) if THOROUGH else (1, 14)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    from tests.conftest import PLAN, small_table

    from kohort.runs.config import read_plan
    from kohort.runs.run import run

    folder = tmp_path_factory.mktemp("bound")
    small_table().write_csv(folder / "table.csv")
    (folder / "plan.toml").write_text(PLAN.format(table=folder / "table.csv"))
    run(read_plan(folder / "plan.toml"), out=folder / "out", seed=1)
    return folder / "out"


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def readers(out: Path) -> Iterator[list[str]]:
    """Every command that reads a run folder."""
    table = str(out.parent.parent / "table.csv") if (out.parent.parent / "table.csv").is_file() else "TABLE"
    yield ["ledger", "verify", str(out)]
    yield ["ledger", "show", str(out)]
    yield ["report", str(out), "--out", str(out.parent / "page.html"), "--force"]
    yield ["evaluate", str(out), table]
    yield ["explain", str(out), "--table", table]
    yield ["export", str(out), "--as", "evidence", "--out", str(out.parent / "evidence.json"), "--force"]
    yield ["audit", str(out), "--shadows", "0"]
    yield ["predict", str(out), table, "--out", str(out.parent / "predicted.csv"), "--force"]


def with_table(command: list[str], finished: Path) -> list[str]:
    return [str(finished.parent / "table.csv") if word == "TABLE" else word for word in command]


def test_an_untouched_run_is_sound_for_its_maker(out: Path, finished: Path, kohort_here: Call) -> None:
    code, shown, _ = kohort_here("ledger", "verify", out, "--json", "--strict")
    found = json.loads(shown)
    assert (code, found["sound"], found["signed_by"]) == (0, True, "this user")
    user = user_identity()
    assert user is not None
    assert found["signer"] == user.public.fingerprint
    assert found["bound"] == sum(path.is_file() for path in out.rglob("*")) - 2  # all but the head and the line itself
    assert found["uncovered"] == []
    for command in readers(out):
        code, _, said = kohort_here(*with_table(command, finished))
        assert code == 0, said
        assert "signer unknown" not in said


def test_a_stranger_must_pin_the_signer(out: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    user = user_identity()
    assert user is not None
    monkeypatch.setenv("KOHORT_STATE", str(out.parent / "another-user"))
    code, shown, _ = kohort_here("ledger", "verify", out, "--json")
    assert (code, json.loads(shown)["sound"]) == (0, False)
    code, _, said = kohort_here("ledger", "verify", out)
    assert code == 0
    assert "consistent, signer unknown" in said
    assert "sound" not in said
    assert kohort_here("ledger", "verify", out, "--strict")[0] == 6
    assert kohort_here("ledger", "verify", out, "--key", "0" * 64)[0] == 6
    code, _, said = kohort_here("ledger", "verify", out, "--strict", "--key", user.public.fingerprint.upper())
    assert code == 0
    assert said.startswith("sound, signed by")
    roster = out.parent / "peers.toml"
    roster.write_text(f'[peers]\nann = "{user.public.fingerprint}"\n')
    roster.chmod(0o600)
    code, _, said = kohort_here("ledger", "verify", out, "--strict", "--roster", roster)
    assert code == 6, said  # ann is a site of the roster, and these are not ann's chain
    code, _, said = kohort_here("report", out, "--out", out.parent / "page.html")
    assert code == 0
    assert "warning: consistent, signer unknown" in (out.parent / "page.html").read_text()


def test_no_manipulation_is_sound(finished: Path, tmp_path: Path, kohort_here: Call) -> None:
    verdicts = {"exit 6": 0, "signer unknown": 0}
    for number in range(MANIPULATED):
        what = manipulated(finished, tmp_path / "forged", number)
        code, shown, _ = kohort_here("ledger", "verify", tmp_path / "forged", "--json")
        assert code in {0, 6}, what
        if code == 0:
            assert json.loads(shown)["sound"] is False, what
            assert number % 2, what  # without a key of his own a forger does not even get this far
        verdicts["exit 6" if code else "signer unknown"] += 1
        user = user_identity()
        assert user is not None
        pinned = kohort_here("ledger", "verify", tmp_path / "forged", "--key", user.public.fingerprint)[0]
        assert pinned == 6, what
    print(f"{MANIPULATED} manipulations: {verdicts}")


def flipped(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]


def test_every_changed_byte_of_every_file_is_noticed_by_every_reader(
    out: Path, finished: Path, kohort_here: Call
) -> None:
    chance = random.Random(5)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    assert len(files) == 9
    caught = 0
    for path in files:
        content = path.read_bytes()
        for _ in range(TRIALS):
            path.write_bytes(flipped(content, chance))
            for command in readers(out):
                code, _, said = kohort_here(*with_table(command, finished))
                assert code == 6, f"{path.name}: {command[:2]} ended with {code}: {said}"
                caught += 1
        path.write_bytes(content)
    print(f"{caught} of {len(files) * TRIALS * 5} caught: {[path.name for path in files]}")


def change(out: Path, name: str, **values: Any) -> None:
    path = out / name
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **values}, indent=1) + "\n")


def test_a_forged_result_is_refused_by_name(out: Path, finished: Path, kohort_here: Call) -> None:
    known = json.loads((out / "run.json").read_bytes())
    change(out, "run.json", epsilon=0.1, metrics={**known["metrics"], "accuracy": 0.99})
    for command in readers(out):
        code, _, said = kohort_here(*with_table(command, finished))
        assert code == 6
        assert "run.json was changed after the run" in said
        assert len(said.strip().splitlines()) == 1


def test_figures_come_from_the_ledger_even_if_their_signer_lies(out: Path, kohort_here: Call) -> None:
    """The user writes other figures into run.json and signs the folder again: the report prints the ledger's."""
    from kohort.crypto.identity.signers import signer_of

    known = json.loads((out / "run.json").read_bytes())
    change(out, "run.json", epsilon=0.1, disclosed=[], bytes={**known["bytes"], "up": 1})
    user = user_identity()
    assert user is not None
    bind_results(out, signer=signer_of(user), run="r", last={})
    code, _, said = kohort_here("report", out, "--out", out.parent / "page.html")
    assert code == 0, said
    shown = json.loads((out.parent / "page.json").read_bytes())["runs"][0]
    assert all(item.pop("in_words") for item in shown["disclosed"])  # the report adds words to the ledger's figures
    assert shown["disclosed"] == known["disclosed"]
    assert shown["bytes"] == known["bytes"]


def test_added_removed_and_replaced_files_are_noticed(out: Path, finished: Path, kohort_here: Call) -> None:
    original = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for path, content in original.items():
        path.unlink()
        code, _, said = kohort_here("ledger", "verify", out)
        assert code == 6, f"{path.name} was removed unseen: {said}"
        path.write_bytes(content)
    for name in ("model/extra.safetensors", "hub/received.parquet", "ledger/more.json"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(b"{}")
        code, _, said = kohort_here("predict", *readers_predict(out, finished))
        assert code == 6, name
        assert name in said
        (out / name).unlink()
    (out / "report.html").write_text("a page")
    code, shown, _ = kohort_here("ledger", "verify", out, "--json")
    assert (code, json.loads(shown)["uncovered"]) == (0, ["report.html"])


def readers_predict(out: Path, finished: Path) -> list[str]:
    return with_table(next(command for command in readers(out) if command[0] == "predict"), finished)[1:]


def test_the_closing_line_cannot_be_stripped_or_borrowed(
    out: Path, finished: Path, tmp_path: Path, kohort_here: Call
) -> None:
    results = out / "ledger" / "results.jsonl"
    line = results.read_bytes()
    for content in (b"", b"{}\n", line + line, line[:-1]):
        results.write_bytes(content)
        assert kohort_here("predict", *readers_predict(out, finished))[0] == 6
    results.unlink()
    for command in readers(out):
        code, _, said = kohort_here(*with_table(command, finished))
        assert code == 6
        assert "results.jsonl" in said
    # Neither the mark of an unfinished run nor removing run.json turns a changed model into one that is read.
    (out / "state").mkdir()
    (out / "state" / "identity.json").write_text("{}")
    assert kohort_here("predict", *readers_predict(out, finished))[0] == 6
    (out / "run.json").unlink()
    assert kohort_here("predict", *readers_predict(out, finished))[0] == 6
    shutil.rmtree(out / "ledger")
    shutil.rmtree(out / "state")
    shutil.copy(finished / "run.json", out / "run.json")
    for command in readers(out):
        assert kohort_here(*with_table(command, finished))[0] in ({2} if command[0] == "ledger" else {6})


def test_a_folder_signed_again_with_a_fresh_key_is_not_sound(out: Path, finished: Path, kohort_here: Call) -> None:
    Forgery(out / "ledger").sign(fresh_signer(7))
    chains = json.loads((out / "ledger" / "head.json").read_bytes())["chains"]
    head = hashlib.blake2b(canonical(chains).encode(), digest_size=16).hexdigest()
    change(out, "run.json", epsilon=0.1, ledger_head=head)
    bind_results(out, signer=fresh_signer(7), run="r", last={})
    code, _, said = kohort_here("ledger", "verify", out)
    assert code == 0
    assert "consistent, signer unknown" in said
    for command in readers(out):
        code, shown, said = kohort_here(*with_table(command, finished))
        if command[0] == "audit":  # it repeats the run, and another one comes out
            assert code == 6
            assert "other releases than its ledger lists" in said
            continue
        assert code == 0
        assert "signer unknown" in said + shown
        if command[0] == "report":
            assert "signer unknown" in (out.parent / "page.html").read_text()


def test_a_run_from_before_results_were_bound_is_read_with_a_note(tmp_path: Path, kohort_here: Call) -> None:
    out = shutil.copytree(GOLDEN, tmp_path / "old")
    code, _, said = kohort_here("ledger", "verify", out)
    assert code == 0
    assert "consistent, signer unknown" in said
    assert "written before results were bound" in said
    (tmp_path / "table.csv").write_text("age,dose,ward,outcome\n40,1.0,a,yes\n")
    code, _, said = kohort_here("report", out, "--out", tmp_path / "page.html")
    assert code == 0, said
    assert "written before results were bound" in (tmp_path / "page.html").read_text()
    from kohort.models.files import load_model

    with pytest.warns(UserWarning, match="written before results were bound"):
        load_model(out)


def test_the_user_key_is_private_and_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KOHORT_STATE", str(tmp_path / "state"))
    first, second = user_identity(), user_identity()
    assert first is not None
    assert second is not None
    assert first.public == second.public
    assert (tmp_path / "state" / "identity.key").stat().st_mode & 0o777 == 0o600
    assert user_pins().signers == {first.public.fingerprint: "this user"}


def test_without_a_place_for_a_key_the_run_says_that_nobody_signed_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan_file: Path, kohort_here: Call
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KOHORT_STATE", str(tmp_path / "file" / "state"))
    assert kohort_here("run", plan_file, "--out", tmp_path / "run")[0] == 0
    assert any(
        "signer is unknown" in note for note in json.loads((tmp_path / "run" / "run.json").read_bytes())["notes"]
    )
    code, _, said = kohort_here("ledger", "verify", tmp_path / "run")
    assert code == 0
    assert "consistent, signer unknown" in said


def test_the_closing_line_has_the_signer_and_the_head_of_its_ledger(
    out: Path, finished: Path, tmp_path: Path, kohort_here: Call
) -> None:
    from kohort.crypto.identity.signers import signer_of
    from kohort.privacy.ledger.ledger import Ledger

    genuine = (out / "ledger" / "head.json").read_bytes()
    change(out, "run.json", epsilon=0.1)
    bind_results(out, signer=fresh_signer(3), run="r", last={})
    for command in readers(out):
        code, _, said = kohort_here(*with_table(command, finished))
        assert code == 6
        assert "another key than the ledger's head" in said
    # A head of another run that the same user signed.
    user = user_identity()
    assert user is not None
    bind_results(out, signer=signer_of(user), run="r", last={})
    assert kohort_here("predict", *readers_predict(out, finished))[0] == 0
    other = Ledger(signer=signer_of(user), folder=tmp_path / "other", run="another")
    other.seal(receipts=(0, "0" * 64), hub_key="")
    other.close()
    shutil.copy(tmp_path / "other" / "head.json", out / "ledger" / "head.json")
    code, _, said = kohort_here("predict", *readers_predict(out, finished))
    assert code == 6
    assert "another ledger" in said
    assert genuine != (out / "ledger" / "head.json").read_bytes()
