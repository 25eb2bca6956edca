"""The page is one offline file, complete, and works in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly", reason="the page needs the extra html")

from planner.explain.answer import Answer, answer
from planner.explain.sensitivity import Row, Sensitivity
from planner.report.in_full import full_words
from planner.report.page import answer_page
from planner.report.page.build import sort_key
from planner.report.page.cluster_map import cluster_map, group_of
from planner.report.page.figures import scaled
from planner.report.proof import proof_line
from planner.report.table import notes_of
from planner.report.timeline import chrome_trace, step_timeline
from planner.request import Question
from planner.solver import evaluate, solve
from planner.spec import Plan
from planner.spec.ranks import coordinates, groups

PINS = {"pp": "2", "tp": "2", "micro-batch": "1", "recompute": "none", "schedule": "1f1b"}


@pytest.fixture(scope="module")
def found() -> Answer:
    """Two stages of a small model on sixteen GPUs: every figure has something to show."""
    request = Question(model="llama-3-8b", gpus=16, global_batch=64, seq_length=2048, pins=PINS).request()
    return answer(request, solve(request, top=3))


@pytest.fixture(scope="module")
def page(found: Answer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "plan.html"
    path.write_text(answer_page(found), encoding="utf-8")
    return path


class _References(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.found += [str(values[name]) for name in ("src", "href") if name in values]
        self.ids += [str(values["id"])] if "id" in values else []


def test_page_refers_to_nothing_outside(page: Path) -> None:
    parser = _References()
    parser.feed(page.read_text(encoding="utf-8"))
    assert parser.found == []
    assert {"plans", "time-stack", "memory-stack", "timeline", "cluster", "figures"} <= set(parser.ids)


def test_page_shows_every_plan_and_sentence_of_the_printed_answer(found: Answer, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<tr") == len(found.result.plans) + 1
    full = f"Plan 1 in full: {full_words(found.result.plans[0].plan, found.request)}."
    sentences = [reason.sentence for reason in found.reasons] + [
        *found.binds,
        *notes_of(found.result, found.request),
    ]
    for sentence in (full, *sentences, *found.request.assumptions, proof_line(found.result, found.request)):
        assert escape(sentence) in text, sentence


def test_the_page_of_an_infeasible_question_says_why_and_what_was_assumed() -> None:
    request = Question(model="llama-3-70b", gpus=8, pins={"zero": "0", "tp": "1"}).request()
    nothing = answer(request, solve(request, top=1))
    text = answer_page(nothing)
    assert nothing.conflict is not None
    assert "Any one of these changes" in text
    assert all(escape(sentence) in text for sentence in request.assumptions)
    assert "as numbers" not in text


def test_what_would_change_the_plan_is_a_table_that_wraps(found: Answer) -> None:
    plan = found.result.plans[0].plan
    rows = (Row("HBM", "85.5 GB", "up", 1.25, 1.25, plan, "106.9 GB", gain_pct=1.8),)
    text = answer_page(replace(found, sensitivity=Sensitivity(rows, 0.8)))
    assert "<table class='wrapped'>" in text
    assert "<td class='text'>106.9 GB</td>" in text
    assert "at most 0.8 % slower" in text


@pytest.mark.parametrize(
    ("texts", "order"),
    [(["1.2 s", "950 ms", "88 us"], [2, 1, 0]), (["12.5%", "9%"], [1, 0]), (["71.0 GB", "8.1 GB"], [1, 0])],
)
def test_sorting_goes_by_the_number(texts: list[str], order: list[int]) -> None:
    keys = [float(sort_key(text)) for text in texts]
    assert sorted(range(len(texts)), key=keys.__getitem__) == order


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
def test_cluster_groups_are_those_of_the_rank_map(order: str) -> None:
    plan = Plan(tensor_parallel=2, context_parallel=2, data_parallel=2, pipeline_parallel=2, schedule="1f1b",
                expert_parallel=4, zero_stage=1, shard_group_size=4, rank_order=order)  # fmt: skip
    for dimension in ("tensor", "context", "data", "pipeline", "expert"):
        seen: dict[tuple[int, ...], list[int]] = {}
        for place in coordinates(plan, 8):
            seen.setdefault(group_of(place, dimension), []).append(place.rank)
        assert sorted(seen.values()) == sorted(groups(plan, dimension))


def test_a_large_cluster_is_cut_and_says_so(found: Answer) -> None:
    plan = Plan(tensor_parallel=8, data_parallel=128)
    picture = cluster_map(plan, found.request.cluster)
    assert picture.count("<rect") == 64 * 8
    assert "The first 64 of 128 nodes" in picture


def test_nodes_name_the_rack_they_stand_in() -> None:
    """GB200 NVL72: nodes of 4, NVLink domains of 64 for a job of 128; node 16 is the first of the second."""
    request = Question(model="llama-3-8b", gpus=128, hardware="gb200-nvl72", global_batch=128).request()
    picture = cluster_map(Plan(tensor_parallel=4, data_parallel=32), request.cluster)
    name = request.cluster.links[0].name
    assert f">node 15, {name} 0<" in picture and f">node 16, {name} 1<" in picture


def test_trace_adds_up_to_the_step(found: Answer) -> None:
    best = found.result.plans[0]
    trace = json.loads(chrome_trace(best.plan, found.request))
    slices = [row for row in trace["traceEvents"] if row["ph"] == "X"]
    end_s = max(row["ts"] + row["dur"] for row in slices) / 1e6
    assert end_s == pytest.approx(best.step_time_s, rel=1e-6)
    operations = [row for row in slices if row["cat"] == "operation" and "micro_batch" in row["args"]]
    assert len(operations) == 2 * best.plan.num_microbatches * best.plan.pipeline_parallel
    inside = sum(row["dur"] for row in slices if row["cat"] != "operation")
    assert inside == pytest.approx(sum(row["dur"] for row in operations), rel=1e-6)


def test_scaling_keeps_the_plan_and_grows_the_replicas(found: Answer) -> None:
    best = found.result.plans[0]
    points = scaled(best, found.request)
    assert len(points) >= 3
    for same_batch, growing in points:
        assert same_batch.plan.global_batch == best.plan.global_batch
        assert growing.plan.num_microbatches == best.plan.num_microbatches
        assert same_batch.plan.num_gpus == growing.plan.num_gpus
    own = [pair for pair in points if pair[0].plan == best.plan]
    assert [pair[0].step_time_s for pair in own] == [best.step_time_s]


@pytest.mark.parametrize(
    ("schedule", "virtual_stages"),
    [("none", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipe", 1)],
)
def test_every_schedule_has_a_timeline_without_overlap(schedule: Any, virtual_stages: int) -> None:
    request = Question(model="llama-3-8b", gpus=16, global_batch=64, framework="any").request()
    stages = 1 if schedule == "none" else 4
    plan = Plan(tensor_parallel=2, pipeline_parallel=stages, virtual_stages=virtual_stages, schedule=schedule,
                data_parallel=8 // stages, sequence_parallel=True, num_microbatches=8 * stages)  # fmt: skip
    timeline = step_timeline(plan, request, most_microbatches=8)
    free_at: dict[int, float] = {}
    for event in sorted(timeline.events, key=lambda event: event.start_s):
        assert event.start_s >= free_at.get(event.rank, 0.0) - 1e-12
        free_at[event.rank] = event.end_s
        work = float(timeline.work(event).total)
        assert event.end_s - event.start_s == pytest.approx(work, rel=1e-9)
    assert evaluate(plan, request).step_time_s > 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="driving a browser needs the extra browser")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for switch in ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
                   "disable-background-networking", "disable-component-update", "disable-sync"):  # fmt: skip
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driving = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield driving
    driving.quit()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("width", [390, 1200])
def test_page_works_in_a_browser(browser: Any, page: Path, width: int, tmp_path: Path) -> None:
    browser.set_window_size(width, 900)
    browser.get(page.as_uri())
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
    for name in ("time-stack", "memory-stack", "timeline", "scaling"):
        assert browser.find_elements("css selector", f"#{name} .main-svg"), name
        captions = browser.find_elements("xpath", f"//*[@id='{name}']/preceding-sibling::figcaption")
        assert captions and captions[0].text
    ranks = lambda: [row.text.split()[0] for row in browser.find_elements("css selector", "#plans tbody tr")]  # noqa: E731
    before = ranks()
    step = browser.find_element("xpath", "//th/button[text()='step']")
    browser.execute_script("arguments[0].click(); arguments[0].click();", step)
    assert ranks() == list(reversed(before))
    gpu = browser.find_element("css selector", "#cluster rect")
    colour = gpu.get_attribute("class")
    other = browser.find_element("css selector", "[data-dimension=pipeline]")
    browser.execute_script("arguments[0].click()", other)
    assert other.get_attribute("aria-pressed") == "true"
    last = browser.find_elements("css selector", "#cluster rect")[-1]
    assert colour and last.get_attribute("class").startswith("g")
    body = browser.execute_script("return document.documentElement.scrollWidth")
    assert body <= width + 1, "the page scrolls sideways"
    shot = tmp_path / "page.png"
    assert browser.save_screenshot(str(shot)) and shot.stat().st_size > 10_000
