"""A run's closing line covers its files: what was changed, removed or added is found; what is not covered is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.forger import fresh_signer

from kohort.errors import IntegrityError
from kohort.privacy.ledger.bound import UNKNOWN_SIGNER, changing_results, check_run_folder
from kohort.privacy.ledger.checks import canonical_bytes, digest_of
from kohort.privacy.ledger.ledger import Ledger, canonical
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.results import amend_results, bind_results, hash_of_file
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import read_head, verify_ledger
from kohort.privacy.ledger.verify_results import BEFORE, BoundResults, verify_results
from kohort.purposes import Purpose

SIGNER, STRANGER = fresh_signer(1), fresh_signer(2)
RUN_JSON = b'{"run": 1}\n'


def sealed(folder: Path) -> None:
    """The sealed ledger of a run without lines."""
    ledger = Ledger(signer=SIGNER, folder=folder / "ledger", run="r")
    receipts = Receipts(signer=SIGNER, folder=folder / "ledger")
    ledger.seal(receipts=(receipts.length, receipts.head), hub_key=receipts.public)
    ledger.close()
    receipts.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run folder with a model, a log and a hub's rows."""
    folder = tmp_path / "run"
    for name, content in {"model/model.json": b"m", "hub/rows.csv": b"rows", "log/day.log": b"said"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    sealed(folder)
    bind_results(folder, signer=SIGNER, run="r", last={"run.json": RUN_JSON})
    (folder / "run.json").write_bytes(RUN_JSON)
    return folder


def results_of(folder: Path, *, before: bool = False) -> BoundResults:
    _, signer = read_head(folder / "ledger" / "head.json")
    return verify_results(folder / "ledger", signer=signer, before=before)


def rewritten(folder: Path, *, by: Signer = SIGNER, **changes: Any) -> None:
    """The last closing line with changed fields, signed again."""
    path = folder / "ledger" / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    said = {key: value for key, value in json.loads(lines[-1]).items() if key != "signature"}
    said |= {"signer": by.record, **changes}
    line = {**said, "signature": by.sign(canonical(said).encode(), purpose=Purpose.RESULT)}
    path.write_bytes(b"".join(lines[:-1]) + canonical_bytes(line) + b"\n")


def test_files_that_are_as_they_were_are_counted_and_others_named(run: Path) -> None:
    found = results_of(run)
    names = ["hub/rows.csv", "ledger/ledger.jsonl", "ledger/receipts.jsonl", "model/model.json", "run.json"]
    assert (found.files, found.uncovered, found.lines, found.run, found.notes) == (5, ("log/day.log",), 1, "r", ())
    line = (run / "ledger" / "results.jsonl").read_bytes()
    assert found.last == digest_of(line[:-1])
    assert sorted(json.loads(line)["files"]) == names
    (run / "state").mkdir()
    (run / "state" / "kept").write_bytes(b"x")
    (run / "notes.txt").write_bytes(b"x")
    assert results_of(run).uncovered == ("log/day.log", "notes.txt")
    seen = verify_ledger(run)
    assert (seen.bound, seen.uncovered, seen.notes) == (5, ["log/day.log", "notes.txt"], [])


@pytest.mark.parametrize("name", ["hub/rows.csv", "ledger/ledger.jsonl", "model/model.json", "run.json"])
def test_a_file_that_was_changed_or_removed_is_named(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    (run / name).write_bytes(content + b" ")
    with pytest.raises(IntegrityError, match=f"{name} was changed after the run"):
        results_of(run)
    (run / name).unlink()
    with pytest.raises(IntegrityError, match=f"{name} is missing"):
        results_of(run)
    (run / name).mkdir()
    with pytest.raises(IntegrityError, match=f"{name} is missing"):
        results_of(run)


def test_a_file_that_cannot_be_read_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Path.open

    def broken(path: Path, *given: Any, **more: Any) -> Any:
        if path.name == "rows.csv":
            raise OSError(5, "Input/output error")
        return usual(path, *given, **more)

    monkeypatch.setattr(Path, "open", broken)
    with pytest.raises(IntegrityError, match=r"rows\.csv cannot be read"):
        results_of(run)


@pytest.mark.parametrize("folder", ["model", "hub", "ledger", "model/deeper"])
def test_nothing_is_added_to_folders_that_programs_read(run: Path, folder: str) -> None:
    (run / folder).mkdir(exist_ok=True)
    results_of(run)  # an empty folder is nothing
    (run / folder / "added").write_bytes(b"")
    with pytest.raises(IntegrityError, match=f"{folder}/added was added after the run"):
        results_of(run)


def test_a_large_file_is_hashed_as_a_whole(run: Path) -> None:
    large = bytes(3 << 20) + b"end"
    (run / "model" / "model.json").write_bytes(large)
    assert hash_of_file(run / "model" / "model.json") == digest_of(large)
    bind_results(run, signer=SIGNER, run="r", last={})
    assert results_of(run).files == 5
    (run / "model" / "model.json").write_bytes(large[:-1] + b"D")
    with pytest.raises(IntegrityError, match="was changed"):
        results_of(run)


def test_a_run_without_a_closing_line_is_unfinished_or_was_tampered_with(run: Path) -> None:
    (run / "ledger" / "results.jsonl").unlink()
    with pytest.raises(IntegrityError, match=r"results\.jsonl is missing"):
        results_of(run)
    assert results_of(run, before=True).notes == (BEFORE,)
    (run / "state").mkdir()
    (run / "state" / "identity.json").write_bytes(b"{}")
    with pytest.raises(IntegrityError, match=r"results\.jsonl is missing"):  # run.json is there, so it was finished
        results_of(run)
    (run / "run.json").unlink()
    found = results_of(run)
    assert (found.files, found.notes) == (0, ("the run is not finished: nothing of it is bound yet",))
    with pytest.raises(IntegrityError, match="is not finished"):
        check_run_folder(run)
    shutil.rmtree(run / "model")
    assert results_of(run) == BoundResults()  # without a model and run.json it is no run's folder
    assert results_of(run, before=True) == BoundResults()


def test_a_ledger_without_its_run_folder_is_not_compared_with_files(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere" / "ledger"
    shutil.copytree(run / "ledger", alone)
    found = results_of(alone.parent)
    assert (found.files, found.notes) == (0, ("the run's files are not beside this ledger and were not checked",))
    renamed = shutil.copytree(run / "ledger", tmp_path / "copied")
    _, signer = read_head(renamed / "head.json")
    assert verify_results(renamed, signer=signer, before=False).notes == found.notes


def test_a_listed_file_at_the_top_shows_that_it_is_a_runs_folder(run: Path) -> None:
    """Whoever removes run.json and the model does not hide that files are missing."""
    (run / "plan.toml").write_bytes(b"plan")
    bind_results(run, signer=SIGNER, run="r", last={"run.json": RUN_JSON})
    (run / "run.json").unlink()
    shutil.rmtree(run / "model")
    with pytest.raises(IntegrityError, match="is missing"):
        results_of(run)


def test_the_closing_line_is_that_of_this_ledger_and_its_signer(run: Path) -> None:
    for changes, against in (
        ({"by": STRANGER}, "signed by another key than the ledger's head"),
        ({"head": "0" * 64}, "belongs to another ledger"),
        ({"files": ["run.json"]}, "does not list files"),
        ({"files": {"run.json": 1}}, "does not list files"),
        ({"files": {"../run.json": "0" * 64}}, "names a file outside"),
        ({"files": {"/etc/hostname": "0" * 64, "run.json": "0" * 64}}, "names a file outside"),
        ({"version": 2}, "not in the form"),
        ({"more": 1}, "not in the form"),
        ({"seq": 1}, "a line is missing or moved"),
        ({"prev": "1" * 64}, "a line is missing or moved"),
    ):
        kept = (run / "ledger" / "results.jsonl").read_bytes()
        rewritten(run, **changes)
        with pytest.raises(IntegrityError, match=against):
            results_of(run)
        (run / "ledger" / "results.jsonl").write_bytes(kept)
    (run / "ledger" / "results.jsonl").write_bytes(b" " + kept)
    with pytest.raises(IntegrityError, match="not in the form"):
        results_of(run)
    (run / "ledger" / "results.jsonl").write_bytes(b"")
    with pytest.raises(IntegrityError, match="is empty"):
        results_of(run)


def test_a_change_by_the_signer_is_signed_with_its_reason(run: Path) -> None:
    with changing_results(run, signer=SIGNER, reason="rows deleted"):
        (run / "hub" / "rows.csv").unlink()
    found = results_of(run)
    assert (found.files, found.lines, found.notes) == (4, 2, ("changed by the signer: rows deleted",))
    with changing_results(run, signer=SIGNER, reason="nothing"):
        pass
    assert results_of(run) == found
    with changing_results(run, signer=SIGNER, reason="again"):
        (run / "model" / "model.json").write_bytes(b"n")
    assert results_of(run).notes == ("changed by the signer: rows deleted", "changed by the signer: again")
    path = run / "ledger" / "results.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for lines in ((first, third), (second, third), (second, first, third)):
        path.write_bytes(b"".join(lines))
        with pytest.raises(IntegrityError, match="a line is missing or moved"):
            results_of(run)


def test_a_change_in_secret_is_not_covered_up(run: Path) -> None:
    before = (run / "ledger" / "results.jsonl").read_bytes()
    (run / "model" / "model.json").write_bytes(b"forged")
    with changing_results(run, signer=SIGNER, reason="rows deleted"):
        (run / "hub" / "rows.csv").unlink()
    assert (run / "ledger" / "results.jsonl").read_bytes() == before
    assert not (run / "hub" / "rows.csv").exists()


def test_only_the_signer_of_a_run_signs_its_changes(run: Path) -> None:
    before = (run / "ledger" / "results.jsonl").read_bytes()
    with changing_results(run, signer=STRANGER, reason="rows deleted"):
        (run / "hub" / "rows.csv").unlink()
    assert (run / "ledger" / "results.jsonl").read_bytes() == before
    (run / "ledger" / "results.jsonl").unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        amend_results(run, signer=SIGNER, run="r", number=1, prev="0" * 64, reason="x")


def test_a_run_folder_is_checked_and_its_signer_named(run: Path) -> None:
    assert check_run_folder(run).notes == (UNKNOWN_SIGNER,)
    known = check_run_folder(run, pins=Pins(signers={SIGNER.record["fingerprint"]: "me"}))
    assert (known.signed_by, known.notes) == ("me", ())
    with pytest.raises(IntegrityError, match="not by somebody else"):
        check_run_folder(run, pins=Pins(signers={"f" * 64: "somebody else"}, required=True))
    (run / "run.json").write_bytes(b"{}")
    with pytest.raises(IntegrityError, match=r"run\.json was changed"):
        check_run_folder(run)
    (run / "ledger" / "head.json").unlink()
    with pytest.raises(IntegrityError, match=r"head\.json is missing: nothing says what the run's files were"):
        check_run_folder(run)


def test_a_run_from_before_results_were_bound_is_read_with_a_note(run: Path) -> None:
    (run / "ledger" / "results.jsonl").unlink()
    place = run / "ledger" / "head.json"
    said = {key: value for key, value in json.loads(place.read_bytes()).items() if key not in {"signature", "signer"}}
    said["version"] = 1
    signature = SIGNER._key.sign(canonical_bytes(said)).hex()
    place.write_bytes(canonical_bytes({**said, "signature": signature}) + b"\n")
    assert check_run_folder(run).notes == (UNKNOWN_SIGNER, BEFORE)
    assert verify_ledger(run).notes == [BEFORE]


def test_a_head_of_the_wrong_shape_is_no_crash(run: Path) -> None:
    rewritten(run, seq=[], prev={})
    for check in (check_run_folder, verify_ledger):
        with pytest.raises(IntegrityError):
            check(run)
