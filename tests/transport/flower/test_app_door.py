"""Somebody else's app behind a site's door: what leaves, what does not, and what the ledger says of it."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from kohort import Policy
from kohort.errors import ConfigError, RefusedError
from kohort.flower import AppLedger, Noise, door_mod, guarded
from kohort.privacy.codes import CODES
from kohort.privacy.ledger.verify import verify_ledger
from kohort.transport.flower.app_content import AppRequest, checked_content

POLICY = Policy(min_rows=100, public=("rows", "train_loss"))
CANARY = "canary-3f9a1c"
Content = Callable[[], RecordDict]


@pytest.fixture(autouse=True)
def identity_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made as a ServerApp makes them."""
    for name, value in {"_run_id": 1, "_task_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


def asked(kind: str = "train", *, number: int = 0) -> Message:
    """A message of the hub, as it comes to a node."""
    content = RecordDict(
        {"arrays": ArrayRecord([np.zeros(3), np.zeros(1)]), "config": ConfigRecord({"server-round": 3})}
    )
    made = Message(content, dst_node_id=7, message_type=kind)
    made.metadata.__dict__["_message_id"] = f"{number:064x}"
    return made


def context() -> Context:
    return Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={})


def trained(rows: int = 120) -> RecordDict:
    metrics = MetricRecord({"train_loss": 0.25, "num-examples": rows})
    return RecordDict({"arrays": ArrayRecord([np.ones(3), np.ones(1)]), "metrics": metrics})


def app_of(content: Callable[[Message], RecordDict]) -> ClientApp:
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return Message(content(message), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query("rows")(answer)
    return app


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_bytes().splitlines()]


def behind(folder: Path, content: Content, policy: Policy = POLICY, **options: Any) -> ClientApp:
    return guarded(app_of(lambda _: content()), door_mod(policy, AppLedger(folder, "north"), **options))


def everything_in(message: Message) -> bytes:
    """All bytes that would travel."""
    parts = [message.deflate()]
    if message.has_content():
        for name, record in message.content.items():
            parts += [name.encode(), record.deflate()]
            parts += [array.data for array in record.values()] if isinstance(record, ArrayRecord) else []
    return b"".join(parts)


def test_an_allowed_reply_leaves_as_the_app_made_it_and_stands_in_the_ledger(tmp_path: Path) -> None:
    reply = behind(tmp_path / "door", trained)(asked(), context())
    assert [array.tolist() for array in reply.content["arrays"].to_numpy_ndarrays()] == [[1.0] * 3, [1.0]]
    assert dict(reply.content["metrics"]) == {"num-examples": 120, "train_loss": 0.25}
    opened, release = lines(tmp_path / "door")
    assert (opened["site"], opened["binding"]["policy"]["min_rows"]) == ("north", 100)
    assert (release["event"], release["what"], release["rows"], release["round"]) == ("release", "flower.train", 120, 3)
    assert release["guarantee"] == {"kind": "aggregate", "rows": 120}
    assert verify_ledger(tmp_path / "door").releases == 1


def test_too_few_rows_are_refused_with_one_word(tmp_path: Path) -> None:
    reply = behind(tmp_path / "door", lambda: trained(99))(asked(), context())
    assert reply.has_error()
    assert not reply.has_content()
    assert (reply.error.code, reply.error.reason) == (6, "policy")
    last = lines(tmp_path / "door")[-1]
    assert (last["event"], "99 rows is below" in last["reason"]) == ("refusal", True)
    assert verify_ledger(tmp_path / "door").refusals == 1


def with_parts(**parts: Any) -> Content:
    return lambda: RecordDict({**trained(), **parts})


def smuggled_in_array() -> RecordDict:
    """An array whose bytes go on after its numbers."""
    made = BytesIO()
    np.save(made, np.ones(3))
    padded = Array(dtype="float64", shape=(3,), stype="numpy.ndarray", data=made.getvalue() + CANARY.encode())
    metrics = MetricRecord({"num-examples": 120})
    return RecordDict({"arrays": ArrayRecord({"0": padded, "1": Array(np.ones(1))}), "metrics": metrics})


REFUSED: dict[str, Content] = {
    "a text": with_parts(config=ConfigRecord({"lr": CANARY})),
    "bytes": with_parts(config=ConfigRecord({"lr": CANARY.encode()})),
    "a record's name": with_parts(**{CANARY: MetricRecord({"train_loss": 1.0})}),
    "a number's name": with_parts(metrics=MetricRecord({CANARY: 1.0, "num-examples": 120})),
    "a number that is not public": with_parts(metrics=MetricRecord({"accuracy": 1.0, "num-examples": 120})),
    "a list of numbers": with_parts(metrics=MetricRecord({"train_loss": [1.0, 2.0], "num-examples": 120})),
    "an array's name": with_parts(arrays=ArrayRecord({CANARY: Array(np.ones(3)), "1": Array(np.ones(1))})),
    "a longer array": with_parts(arrays=ArrayRecord([np.ones(4), np.ones(1)])),
    "one array more": with_parts(arrays=ArrayRecord([np.ones(3), np.ones(1), np.ones(1)])),
    "another type": with_parts(arrays=ArrayRecord([np.ones(3, dtype=np.float32), np.ones(1)])),
    "an array of texts": with_parts(arrays=ArrayRecord([np.array([CANARY] * 3), np.ones(1)])),
    "the arrays twice": with_parts(**{"fitres.parameters": ArrayRecord([np.ones(3), np.ones(1)])}),
    "no count": with_parts(metrics=MetricRecord({"train_loss": 1.0})),
    "two counts": with_parts(metrics=MetricRecord({"num_examples": 120, "num-examples": 120})),
    "a count that is none": with_parts(metrics=MetricRecord({"num-examples": 120.5})),
    "a negative count": with_parts(metrics=MetricRecord({"num-examples": -5})),
    "a status of its own": with_parts(**{"fitres.status": ConfigRecord({"code": 0, "message": CANARY})}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_an_app_could_hide_rows_in_is_refused(tmp_path: Path, what: str) -> None:
    reply = behind(tmp_path / "door", REFUSED[what])(asked(), context())
    assert (reply.has_error(), reply.error.reason) == (True, "policy")
    assert CANARY.encode() not in everything_in(reply)
    last = lines(tmp_path / "door")[-1]
    assert (last["event"], CANARY in json.dumps(last)) == ("refusal", False)


def test_bytes_after_an_arrays_numbers_and_the_order_of_names_do_not_leave(tmp_path: Path) -> None:
    reply = behind(tmp_path / "door", smuggled_in_array)(asked(), context())
    assert CANARY.encode() not in everything_in(reply)
    turned = {"1": Array(np.ones(1)), "0": Array(np.ones(3))}
    content = RecordDict({"metrics": MetricRecord({"num-examples": 120}), "arrays": ArrayRecord(turned)})
    reply = behind(tmp_path / "door", lambda: content)(asked(number=1), context())
    assert list(reply.content["arrays"]) == ["0", "1"]
    assert list(reply.content) == ["arrays", "metrics"]


def test_an_apps_errors_leave_as_one_word(tmp_path: Path) -> None:
    def raises(message: Message) -> RecordDict:
        raise ValueError(CANARY)

    def ends(message: Message) -> RecordDict:
        raise SystemExit(CANARY)

    mod = door_mod(POLICY, AppLedger(tmp_path / "door", "north"))
    for number, content in enumerate((raises, ends)):
        reply = guarded(app_of(content), mod)(asked(number=number), context())
        assert (reply.error.code, reply.error.reason) == (2, "failed")
    own = ClientApp()
    own.train()(lambda message, context: Message(Error(2, CANARY), reply_to=message))
    replies = [guarded(own, mod)(asked(number=2), context())]
    no_such_task = guarded(app_of(lambda _: trained()), mod)(
        asked("query.rows_of_" + CANARY.replace("-", "_")), context()
    )
    replies.append(no_such_task)
    late = app_of(lambda _: trained())

    @late.lifespan()
    def lifespan(context: Context) -> Any:
        yield
        raise ValueError(CANARY)

    replies.append(guarded(late, mod)(asked(number=4), context()))
    assert [reply.error.reason for reply in replies] == ["failed"] * 3
    assert not any(CANARY.encode() in everything_in(reply) for reply in replies)
    assert {line["event"] for line in lines(tmp_path / "door")[1:]} == {"note"}


def test_tasks_the_policy_does_not_answer_do_not_run(tmp_path: Path) -> None:
    ran = []
    app = guarded(
        app_of(lambda message: ran.append(message) or trained()),
        door_mod(Policy(tasks=("flower.train",)), AppLedger(tmp_path / "door", "north")),
    )
    for kind in ("evaluate", "query.rows"):
        assert app(asked(kind), context()).error.reason == "policy"
    assert (ran, [line["what"] for line in lines(tmp_path / "door")[1:]]) == (
        [],
        ["flower.evaluate", "flower.query.rows"],
    )


def test_the_operators_word_on_rows_numbers_and_answers_counts(tmp_path: Path) -> None:
    more = behind(tmp_path / "rows", lambda: trained(5000), rows=200)(asked(), context())
    assert more.error.reason == "policy"
    large = behind(tmp_path / "numbers", trained, most_numbers=3)(asked(), context())
    assert large.error.reason == "policy"
    often = behind(tmp_path / "often", trained, most_answers=2)
    said = [often(asked(number=number), context()) for number in range(3)]
    assert [reply.has_error() for reply in said] == [False, False, True]
    assert said[2].error.reason == "limits"
    hidden = behind(tmp_path / "hidden", trained, Policy(public=("train_loss",)))(asked(), context())
    assert hidden.error.reason == "policy"


def test_noise_is_paid_for_until_the_budget_is_spent(tmp_path: Path) -> None:
    noise = Noise(clip=1.0, epsilon=1.0, delta=1e-6)
    policy = Policy(min_rows=1, public=("rows", "train_loss"), epsilon=1.6, delta=1e-5)  # two of epsilon 1 are 1.40
    app = behind(tmp_path / "door", trained, policy, noise=noise, rows=150)
    replies = [app(asked(number=number), context()) for number in range(3)]
    assert [reply.has_error() for reply in replies] == [False, False, True]
    moved = [np.concatenate(reply.content["arrays"].to_numpy_ndarrays()) for reply in replies[:2]]
    assert not np.allclose(moved[0], moved[1])
    assert verify_ledger(tmp_path / "door").epsilon == pytest.approx(1.40, abs=0.02)
    # A new process, or a new mod, reads the ledger: what was spent stays spent.
    again = behind(tmp_path / "door", trained, policy, noise=noise, rows=150)(asked(number=9), context())
    assert again.error.reason == "policy"


def test_the_noise_has_the_standard_deviation_of_its_claim() -> None:
    noise = Noise(clip=0.5, epsilon=1.0, delta=1e-5)
    size = 40_000
    sent = RecordDict({"arrays": ArrayRecord([np.full(size, 3.0)])})
    update = np.zeros(size)
    update[:3] = np.nan, np.inf, 1e9
    answered = RecordDict({"arrays": ArrayRecord([3.0 + update]), "metrics": MetricRecord({"num-examples": 9})})
    checked = checked_content(AppRequest.of(sent), answered, policy=POLICY, most_numbers=size)
    made = noise.added(checked).arrays["arrays"]["0"] - 3.0
    # sigma of the analytic Gaussian mechanism at (1, 1e-5), sensitivity 2 x clip
    assert np.std(made) == pytest.approx(3.730632 * 1.0, rel=0.02)
    assert abs(made[2]) < 0.5 + 6 * 3.74
    whole = RecordDict({"arrays": ArrayRecord([np.ones(2, dtype=np.int64)])})
    reply = RecordDict({**whole, "metrics": MetricRecord({"num-examples": 9})})
    counts = checked_content(AppRequest.of(whole), reply, policy=POLICY, most_numbers=9)
    with pytest.raises(RefusedError, match="whole numbers"):
        noise.added(counts)


def test_clients_of_the_older_interface_pass(tmp_path: Path) -> None:
    from flwr.client import NumPyClient

    class Client(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [array + 1 for array in parameters], 120, {"train_loss": 0.5}

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return 0.5, 120, {}

    content = {
        "fitins.parameters": ArrayRecord([np.zeros(3)]),
        "fitins.config": ConfigRecord({}),
        "evaluateins.parameters": ArrayRecord([np.zeros(3)]),
        "evaluateins.config": ConfigRecord({}),
    }
    app = guarded(
        ClientApp(client_fn=lambda context: Client().to_client()),
        door_mod(Policy(public=("rows", "train_loss", "loss")), AppLedger(tmp_path / "door", "north")),
    )
    for number, kind in enumerate(("train", "evaluate")):
        message = Message(RecordDict(dict(content)), dst_node_id=7, message_type=kind)
        message.metadata.__dict__["_message_id"] = f"{number:064x}"
        reply = app(message, context())
        assert reply.has_content(), reply.error
    assert verify_ledger(tmp_path / "door").releases == 2


def test_a_second_answer_to_one_message_stays_here(tmp_path: Path) -> None:
    answers = [trained(), RecordDict({**trained(), "metrics": MetricRecord({"num-examples": 121})})]
    app = behind(tmp_path / "door", lambda: answers.pop(0))
    assert not app(asked(), context()).has_error()
    assert app(asked(), context()).error.reason == "tampered"


def test_a_changed_ledger_lets_nothing_out(tmp_path: Path) -> None:
    app = behind(tmp_path / "door", trained)
    app(asked(), context())
    place = tmp_path / "door" / "ledger" / "ledger.jsonl"
    place.write_bytes(place.read_bytes().replace(b'"rows":120', b'"rows":900'))
    reply = app(asked(number=1), context())
    assert (reply.has_content(), reply.error.reason in CODES) == (False, True)


def test_settings_are_judged_where_they_are_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no name"):
        door_mod(POLICY, AppLedger(tmp_path / "door", "north hospital"))
    with pytest.raises(ConfigError, match="min_rowz"):
        door_mod({"min_rowz": 5}, tmp_path / "door")
    with pytest.raises(ConfigError, match="negative"):
        door_mod(POLICY, tmp_path / "door", rows=0)
    with pytest.raises(ConfigError, match="clip"):
        Noise(clip=0.0, epsilon=1.0, delta=1e-5)
    door_mod({"min_rows": 5}, tmp_path / "door")
    assert stat.S_IMODE((tmp_path / "door" / "identity.key").stat().st_mode) == 0o600
    (tmp_path / "door" / "identity.key").chmod(0o640)
    with pytest.raises(RefusedError, match="others may read"):
        door_mod(POLICY, tmp_path / "door")


def test_another_app_is_turned_away_unopened_and_the_door_goes_on(tmp_path: Path) -> None:
    import hashlib
    from types import SimpleNamespace

    from kohort.transport.flower.app_runner import AppRunner

    mod = door_mod(POLICY, AppLedger(tmp_path / "door", "north"))
    approved = hashlib.sha256(b"approved").hexdigest()
    runner = AppRunner(
        approved=approved,
        mod=mod,
        refuse=lambda reason: mod.note("app bundle", reason),
        address="127.0.0.1:1",
        secret=b"s",
        home=tmp_path / "flower",
    )
    app = runner._app()
    for content, word, said in (
        (b"other", "approval", "nothing of it was unpacked"),
        (b"approved", "failed", "loaded"),
    ):
        bundle = SimpleNamespace(content=content, hash_str=hashlib.sha256(content).hexdigest())
        run = SimpleNamespace(fab_id="", fab_version="")
        reply, ends = runner._respond(app, asked(), context(), run=run, bundle=bundle)
        assert (reply.error.reason, ends) == (word, None)
        assert said in lines(tmp_path / "door")[-1]["reason"]
    assert not app, "what cannot be loaded is not kept"
    app["loaded"] = guarded(app_of(lambda _: trained()), mod)
    reply, ends = runner._respond(app, asked(), context(), run=None, bundle=SimpleNamespace(content=b"approved"))
    assert (reply.has_content(), ends) == (True, None)


def test_a_ledger_that_was_copied_back_lets_nothing_out(tmp_path: Path) -> None:
    import shutil

    app = behind(tmp_path / "door", trained)
    app(asked(), context())
    shutil.copytree(tmp_path / "door" / "ledger", tmp_path / "yesterday")
    app(asked(number=1), context())
    shutil.rmtree(tmp_path / "door" / "ledger")
    shutil.copytree(tmp_path / "yesterday", tmp_path / "door" / "ledger")
    assert app(asked(number=2), context()).has_error()
    shutil.rmtree(tmp_path / "door" / "ledger")
    assert app(asked(number=2), context()).has_error()


def test_the_folder_of_a_door_is_judged_where_it_is_read(tmp_path: Path, kohort_here: Any) -> None:
    place = tmp_path / "north"
    assert kohort_here("flower", "init", place, "--name", "north hospital")[0] == 2
    code, printed, _ = kohort_here("flower", "init", place, "--name", "north", "--rows", 1200)
    assert (code, len(printed.strip())) == (0, 64)
    assert kohort_here("flower", "start", place)[0] == 2  # no app is approved yet
    text = (place / "door.toml").read_text().replace('app = ""', f'app = "{"a" * 64}"')
    (place / "door.toml").write_text(text.replace("# noise", "noise"))
    from kohort.transport.deployment.app_site import AppSiteFolder

    door, policy = AppSiteFolder(place).settings()
    assert (door.rows, door.noise, policy.min_rows) == (1200, Noise(clip=1.0, epsilon=0.5, delta=1e-6), 100)
    assert policy.tasks == ("flower.train", "flower.evaluate")
    (place / "door.toml").chmod(0o622)
    assert kohort_here("flower", "start", place)[0] == 4
