"""Put the page together. Everything is inside the file: styles, scripts, data; nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from planner.errors import BadInput
from planner.report.page.cluster_map import cluster_map, shown_dimensions
from planner.report.proof import proof_line
from planner.report.table import (
    HEADERS,
    conflict_text,
    headline,
    memory_breakdown,
    plan_row,
    time_breakdown,
)
from planner.spec import PlanRequest

if TYPE_CHECKING:
    from planner.explain.answer import Answer
    from planner.solver.result import Estimate

TEXT_COLUMNS = frozenset({"schedule", "recompute"})


def answer_page(answer: Answer) -> str:
    """Return the whole answer as one HTML document.

    Raises
    ------
    BadInput
        The plotting library is not installed (extra ``html``).
    """
    try:
        from plotly.offline import get_plotlyjs

        from planner.report.page.figures import figures
    except ImportError as error:
        raise BadInput("pages need the plotting library: pip install 'plan-parallel[html]'") from error
    drawn = figures(answer) if answer.result.plans else {}
    data = json.dumps({name: json.loads(figure.to_json()) for name, figure in drawn.items()})
    body = _plan_body(answer, list(drawn)) if answer.result.plans else _nothing_body(answer)
    scripts = [get_plotlyjs(), _asset("page.js")]
    return _document(headline(answer.request), body, data, scripts)


def _asset(name: str) -> str:
    return files("planner.report.page").joinpath(name).read_text(encoding="utf-8")


def _document(title: str, body: str, data: str, scripts: Sequence[str]) -> str:
    inline = "".join(f"<script>{script}</script>" for script in scripts)
    safe = data.replace("</", "<\\/")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_asset('style.css')}</style></head><body>{body}"
        f'<script type="application/json" id="figures">{safe}</script>{inline}</body></html>\n'
    )


def _plan_body(answer: Answer, drawn: Sequence[str]) -> str:
    best, request = answer.result.plans[0], answer.request
    parts = [
        f"<h1>Training plan</h1><p class='lead'>{escape(headline(request))}</p>",
        f"<p>{escape(proof_line(answer.result, request))}</p>",
        _section("Ranked plans", _ranking(answer.result.plans, request)),
        _section("Why plan 1", _bullets(answer.explanation)),
        _section("Where the time goes", _figure("time-stack", drawn) + _pre(time_breakdown(best.time))),
        _section("Where the memory goes", _memory(best, request, drawn)),
        _section("Pipeline", _figure("timeline", drawn)),
        _section("Groups on the cluster", _groups(best, request)),
        _section("Scaling", _figure("scaling", drawn)),
        _section("What would change it", _sensitivity(answer)),
        _section("Assumptions", _bullets((*request.assumptions, *best.notes, *answer.result.notes))),
        _section("Sources", _bullets(_sources(request))),
    ]
    return "".join(parts)


def _nothing_body(answer: Answer) -> str:
    reason = _pre(conflict_text(answer.conflict)) if answer.conflict else "<p>No plan was found in time.</p>"
    return f"<h1 class='bad'>Nothing fits</h1><p class='lead'>{escape(headline(answer.request))}</p>{reason}"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _bullets(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _pre(text: str) -> str:
    return f"<details open><summary>as numbers</summary><pre class='scroll'>{escape(text)}</pre></details>"


def _figure(name: str, drawn: Sequence[str]) -> str:
    return f'<figure><div id="{name}" class="figure"></div></figure>' if name in drawn else ""


def _ranking(plans: Sequence[Estimate], request: PlanRequest) -> str:
    head = "".join(_header(name) for name in HEADERS)
    rows = "".join(_row(rank, plan_row(rank, plan, request)) for rank, plan in enumerate(plans, 1))
    table = f'<table id="plans"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<div class='scroll'>{table}</div>"


def _header(name: str) -> str:
    kind = " class='text'" if name in TEXT_COLUMNS else ""
    return f'<th scope="col"{kind}><button type="button">{escape(name)}</button></th>'


def _row(rank: int, cells: Sequence[Any]) -> str:
    shown = "".join(_cell(name, str(cell)) for name, cell in zip(HEADERS, cells, strict=True))
    return f"<tr{' class=best' if rank == 1 else ''}>{shown}</tr>"


def _cell(name: str, text: str) -> str:
    if name in TEXT_COLUMNS:
        return f"<td class='text'>{escape(text)}</td>"
    return f'<td data-value="{escape(sort_key(text))}">{escape(text)}</td>'


_SCALES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def sort_key(text: str) -> str:
    """Return the number behind a printed figure, so that ``950 ms`` sorts before ``1.2 s``."""
    number, _, unit = text.partition(" ±")[0].rstrip("%").partition(" ")
    try:
        return repr(float(number) * _SCALES.get(unit, 1.0))
    except ValueError:
        return text


def _memory(best: Estimate, request: PlanRequest, drawn: Sequence[str]) -> str:
    return _figure("memory-stack", drawn) + _pre(memory_breakdown(best.stages[best.worst_stage], request))


def _groups(best: Estimate, request: PlanRequest) -> str:
    buttons = "".join(
        f'<button type="button" data-dimension="{name}" aria-pressed="false">{name} groups</button>'
        for name in shown_dimensions(best.plan)
    )
    return f'<div class="buttons">{buttons}</div>{cluster_map(best.plan, request.cluster)}'


def _sensitivity(answer: Answer) -> str:
    return _pre(answer.sensitivity.text()) if answer.sensitivity else ""


def _sources(request: PlanRequest) -> list[str]:
    """Where the model's and the accelerator's numbers come from, one line a table."""
    accelerator = request.cluster.accelerator
    tables = {
        "peak": accelerator.compute, "memory": accelerator.memory, "host": accelerator.host,
        **{f"{name} products": curve for name, curve in accelerator.gemm.items()},
        **{f"attention {name}": curve for name, curve in accelerator.attention.items()},
        **{f"link {link.name}": link for link in request.cluster.links},
    }  # fmt: skip
    lines = [f"{request.model.name}: {request.model.source}"] if request.model.source else []
    return lines + [
        f"{accelerator.name}, {name}: {table.source} ({table.origin})" for name, table in tables.items()
    ]
