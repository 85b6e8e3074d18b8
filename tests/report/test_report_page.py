"""The page: complete, self-contained, escaped, the same for the same runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.run_reports import disclosure, failed, finished, of_numbers

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy import guarantee
from kohort.report import page as page_module
from kohort.report.page import render, write_report
from kohort.report.sections import SITES_NAMED
from kohort.report.words import kind_named

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}&"
LOADS = {"src", "href", "xlink:href", "action", "data", "poster", "srcset", "formaction", "background"}


class Reader(HTMLParser):
    """The tags, attributes and text a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_every_run_is_on_the_page_with_its_figures() -> None:
    text = Reader(render([finished("fedavg"), finished("central", name="pooled")], title="Two")).text
    for expected in ("fedavg", "pooled", "0.8125", "0.8500", "327 kB", "aggregate(rows=100)", "site-00002", "seed"):
        assert expected in text
    assert text.count("6fbb47392e457dee7e0a3c47efb72346") == 2


def without_own_script(page: str) -> str:
    """The page without the one script that its Content-Security-Policy allows by hash: the packaged file as it is."""
    script = (Path(page_module.__file__).parent / "templates" / "sort.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert f'content="{policy}"' in page
    assert page.count(f"<script>{script}</script>") == 1
    assert not re.search(r"fetch|XMLHttp|import|eval|innerHTML|https?:|document\.write|location", script)
    return page.replace(f"<script>{script}</script>", "")


def test_nothing_is_asked_of_the_network_and_one_known_script_runs() -> None:
    plan = {"data": {"table": "https://example.org/table.csv"}}
    page = without_own_script(render([finished(), of_numbers(), failed()], title="x", plan=plan))
    reader = Reader(page)
    assert not {"script", "link", "iframe", "img", "object", "embed", "base", "form", "image", "use"} & set(reader.tags)
    asked = [(name, value) for name, value in reader.attributes if name in LOADS or name.startswith("on")]
    assert all(name == "href" and value.startswith("#") for name, value in asked)  # within the page alone
    style = "".join(re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL))
    assert "@import" not in style
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_hostile_names_are_text_and_nothing_else() -> None:
    run = finished(
        HOSTILE,
        name=HOSTILE,
        site_rows={HOSTILE: 5},
        refused={HOSTILE: HOSTILE},
        dropped={HOSTILE: HOSTILE},
        notes=[HOSTILE],
        stopped_by=HOSTILE,
        ledger_head=HOSTILE,
        disclosed=[disclosure(HOSTILE, HOSTILE, recipient=HOSTILE, what=HOSTILE)],
        unit=HOSTILE,
        epsilon=1.0,
        delta=1e-5,
    )
    run["metrics"]["by_site"] = {HOSTILE: {"rows": 3, "accuracy": 0.5}}
    plan = {"data": {"table": HOSTILE, "quasi": [HOSTILE]}}
    page = render([run, finished(), failed(HOSTILE, HOSTILE)], title=HOSTILE, plan=plan)
    calm = render([finished(), finished("other"), failed()], title="x")
    assert set(Reader(page).tags) <= set(Reader(calm).tags)
    assert not [name for name, _ in Reader(page).attributes if name.startswith("on")]
    assert "<script" not in without_own_script(page)
    assert "{{ 7*7 }}" in page


@settings(max_examples=5)
@example(name="\x00")  # ends the chart renderer's process when it is let through
@example(name="\ud800")  # a lone surrogate: JSON can carry it, UTF-8 cannot
@example(name="\u202egnp.exe")  # turns the reading direction
@given(name=st.text(st.characters(), min_size=1, max_size=30))
def test_any_name_makes_a_page(name: str) -> None:
    run = finished(name=name, site_rows={name: 5})
    run["metrics"]["by_site"] = {name: {"rows": 3, "accuracy": 0.5}}
    page = render([run, finished("central")], title=name, plan={"data": {"table": name}})
    assert page.encode().decode() == page
    assert "<script" not in without_own_script(page)
    assert all(char.isprintable() or char == "\n" for char in page)


def test_a_failed_run_is_shown_with_its_reason() -> None:
    text = Reader(render([finished(), failed("partial", "3 sites refuse the plan. Ask for less")], title="x")).text
    assert "did not finish" in text
    assert "3 sites refuse the plan. Ask for less" in text


def test_a_page_of_failures_alone_is_a_page() -> None:
    assert "No run finished." in render([failed()], title="x")


def test_numbers_and_classes_are_never_in_one_table() -> None:
    text = Reader(render([finished(), of_numbers()], title="x")).text
    assert text.index("Runs that predict a class") < text.index("Runs that predict a number")
    for expected in ("RMSE", "51,234", "0.6250", "R²"):
        assert expected in text


def test_the_same_runs_give_the_same_page() -> None:
    runs = [finished(), finished("central"), of_numbers(), failed()]
    assert render(runs, title="x") == render(runs, title="x")


def test_every_kind_of_guarantee_has_a_sentence_of_its_own() -> None:
    ours = [kind for kind in guarantee.Guarantee.__subclasses__() if kind.__module__ == guarantee.__name__]
    kinds = sorted({kind.kind for kind in ours})
    text = Reader(render([finished(disclosed=[disclosure(kind, f"{kind}(x=1)") for kind in kinds])], title="x")).text
    for kind in kinds:
        assert kind_named(kind).sentence != kind_named("of a plug-in").sentence
        assert kind_named(kind).sentence in text
        assert f"{kind}(x=1)" in text


def test_an_unknown_kind_is_not_shown_as_protection() -> None:
    assert kind_named("of a plug-in").tone != "guarded"


@pytest.mark.parametrize("kind", ["k-anonymous", "k-km"])
def test_a_page_about_anonymous_rows_says_what_they_do_not_protect(kind: str) -> None:
    for weakness in ("several sites", "minimality", "downcoding"):
        assert weakness in kind_named(kind).sentence


def test_charts_have_alternative_text_and_follow_the_dark_theme() -> None:
    page = render([finished(), finished("central")], title="x")
    labels = [value for name, value in Reader(page).attributes if name == "aria-label"]
    assert page.count("<svg") == page.count('role="img"') == 4
    assert any("fedavg 0.8125" in label for label in labels)
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert not re.findall(r'(?:fill|stroke)="(?:#000|#fff|black|white|#ddd|#888)"', drawings)
    assert "prefers-color-scheme: dark" in page


def test_many_sites_are_summarised_and_the_lowest_scores_are_named() -> None:
    run = finished(sites=500)
    page = render([run], title="x")
    text = Reader(page).text
    assert "Of 500 sites, the 20 with the lowest scores are named" in text
    assert "site-00000" in text
    assert "site-00499" not in text
    assert len(page) < 200_000
    few = Reader(render([finished(sites=SITES_NAMED)], title="x")).text
    assert f"site-{SITES_NAMED - 1:05d}" in few


def test_refusals_are_counted_by_reason() -> None:
    refused = {f"site-{place:05d}": "the policy forbids raw rows" for place in range(300)}
    text = Reader(render([finished(refused=refused, dropped={"lost": "no answer"})], title="x")).text
    assert "the policy forbids raw rows 300 site-00000" in text
    assert "and 290 more" in text
    assert "no answer" in text


def test_the_twin_holds_the_runs_and_no_nan(tmp_path: Path) -> None:
    run = finished()
    run["metrics"]["auc"] = float("nan")
    twin = write_report(tmp_path / "report.html", [run, failed()], title="x", plan={"data": {"table": "adult"}})

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    content = json.loads(twin.read_text(), parse_constant=refuse)
    assert twin == tmp_path / "report.json"
    assert [item["method"] for item in content["runs"]] == ["fedavg", "partial"]
    assert content["runs"][0]["metrics"]["auc"] is None
    assert content["runs"][0]["disclosed"] == run["disclosed"]
    assert content["versions"]["kohort"]
    assert "nan" not in Reader((tmp_path / "report.html").read_text()).text


def test_declared_categories_stay_off_the_page() -> None:
    plan = {"data": {"table": "t", "categories": {"ward": ["secret-ward"]}, "bounds": {"age": [17, 9191]}}}
    page = render([finished()], title="x", plan=plan)
    assert "secret-ward" not in page
    assert "9191" not in page


def test_runs_of_the_same_name_get_distinct_labels() -> None:
    text = Reader(render([finished(), finished()], title="x")).text
    assert "fedavg (2)" in text


def test_a_history_of_any_length_is_drawn() -> None:
    long = [{"round": place, "accuracy": 0.5} for place in range(1, 10_001)]
    page = render([finished(history=long), finished("oneshot", history=[])], title="x")
    assert len(page) < 200_000
    assert "a horizontal line is a run that was measured at its end alone" in page


def test_what_is_no_page_or_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HTML"):
        write_report(tmp_path / "report.json", [finished()], title="x")
    with pytest.raises(ConfigError, match="no run"):
        render([], title="x")
    with pytest.raises(IntegrityError, match="'bytes'"):
        render([finished(bytes={"up": "many"})], title="x")
    assert not list(tmp_path.iterdir())


def test_many_runs_stand_in_several_tables_of_sites() -> None:
    runs = [finished(name=f"run-{place:02d}") for place in range(21)]
    page = render(runs, title="x")
    tables = re.findall(r"<table class=\"dense stack\">\s*<caption>Row counts.*?</thead>", page, flags=re.DOTALL)
    assert [table.count("<bdi>") for table in tables] == [9, 9, 3]
    assert "run-20" in tables[-1]
    assert "Sites in runs 19 to 21 of 21" in page
    assert page.count('data-label="run-20"') == 3  # one score for each site
    assert "third quartile" in page
    few = render(runs[:9], title="x")
    assert "Sites in runs" not in few
    assert "third quartile" not in few


def test_what_a_warning_says_is_not_said_again_as_left_out_and_as_a_note() -> None:
    said = "71 rows left out: kept at sites"
    left = [{"what": "rows", "why": "kept at sites", "count": 71}, {"what": "values", "why": "clipped", "count": 2}]
    text = Reader(render([finished(warnings=[said], notes=[said, "another note"], left_out=left)], title="x")).text
    assert text.count("kept at sites") == 1
    assert "Left out: values (2): clipped" in text
    assert "another note" in text


def test_the_baseline_of_several_runs_is_said_once() -> None:
    runs = [finished(name, baselines={"majority": {"accuracy": 0.75}}) for name in ("fedavg", "central", "silo")]
    assert render(runs, title="x").count("Baselines: ") == 1


def test_too_few_addresses_for_the_renderer_are_an_error_and_no_abort(tmp_path: Path) -> None:
    """The renderer's engine reserves tens of gigabytes of addresses, and ends the process where it gets fewer."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))\n"
        "from kohort.report.charts import get_ready\n"
        "from kohort.errors import ResourceError\n"
        "try:\n    get_ready()\nexcept ResourceError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("drawing charts reserves 75.2 GB of addresses")
