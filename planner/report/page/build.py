"""Put the page together. Everything is inside the file: styles, scripts, data; nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from planner.errors import BadInput
from planner.report.in_full import full_words
from planner.report.page.cluster_map import cluster_map, shown_dimensions
from planner.report.proof import proof_line
from planner.report.table import (
    HEADERS,
    headline,
    memory_breakdown,
    notes_of,
    plan_row,
    time_breakdown,
)
from planner.spec import PlanRequest

if TYPE_CHECKING:
    from planner.explain.answer import Answer
    from planner.solver.result import Estimate

TEXT_COLUMNS = frozenset({"schedule", "recompute"})
NO_PLOTS = "pages need the plotting library: pip install 'plan-parallel[html]'"
SENSITIVITY_HEADERS = ("number", "now", "change", "then")


def answer_page(answer: Answer) -> str:
    """Return the whole answer as one HTML document.

    Raises
    ------
    BadInput
        The plotting library is not installed (extra ``html``).
    """
    with _plotting():
        from planner.report.page.figures import figures
    drawn = figures(answer) if answer.result.plans else {}
    captions = {name: figure.layout.meta["caption"] for name, figure in drawn.items()}
    body = _plan_body(answer, captions) if answer.result.plans else _nothing_body(answer)
    return whole_page(headline(answer.request), body, drawn)


def whole_page(title: str, body: str, drawn: Mapping[str, Any]) -> str:
    """Return a document with figures, styles and scripts inside; ``drawn`` are figures by element id.

    Raises
    ------
    BadInput
        The plotting library is not installed (extra ``html``).
    """
    with _plotting():
        from plotly.offline import get_plotlyjs
    data = json.dumps({name: json.loads(figure.to_json()) for name, figure in drawn.items()})
    return _document(title, body, data, [get_plotlyjs(), _asset("page.js")])


@contextmanager
def _plotting() -> Iterator[None]:
    """Say in a sentence that an import needs the plotting library."""
    try:
        yield
    except ImportError as error:
        raise BadInput(NO_PLOTS) from error


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


def _plan_body(answer: Answer, captions: Mapping[str, str]) -> str:
    best, request = answer.result.plans[0], answer.request
    parts = [
        f"<h1>Training plan</h1><p class='lead'>{escape(headline(request))}</p>",
        f"<p>{escape(proof_line(answer.result, request))}</p>",
        section_html("Ranked plans", _ranking(answer.result.plans, request)),
        f"<p>Plan 1 in full: {escape(full_words(best.plan, request))}.</p>",
        section_html("Why plan 1", bullets_html(reason.sentence for reason in answer.reasons)),
        section_html("What binds", bullets_html(answer.binds)),
        section_html("Notes", bullets_html(notes_of(answer.result, request))),
        section_html(
            "Where the time goes", figure_html("time-stack", captions) + _pre(time_breakdown(best.time))
        ),
        section_html("Where the memory goes", _memory(best, request, captions)),
        section_html("Pipeline", figure_html("timeline", captions)),
        section_html("Groups on the cluster", _groups(best, request)),
        section_html("Scaling", figure_html("scaling", captions)),
        section_html("What would change it", _sensitivity(answer)),
        section_html("Assumptions", bullets_html(request.assumptions)),
        section_html("Sources", bullets_html(_sources(request))),
    ]
    return "".join(parts)


def _nothing_body(answer: Answer) -> str:
    request, conflict = answer.request, answer.conflict
    parts = [f"<h1 class='bad'>Nothing fits</h1><p class='lead'>{escape(headline(request))}</p>"]
    if conflict is None:
        parts.append("<p>No plan was found in time.</p>")
    else:
        changes = bullets_html(relaxation.sentence for relaxation in conflict.relaxations)
        parts += [
            f"<p>{escape(conflict.paragraph)}</p>",
            section_html("Any one of these changes makes a plan possible", changes),
            section_html("Not enough alone", bullets_html(conflict.hopeless)),
        ]
    parts.append(section_html("Assumptions", bullets_html(request.assumptions)))
    return "".join([*parts, f"<p>{escape(proof_line(answer.result, request))}</p>"])


def section_html(title: str, body: str) -> str:
    """A part of the page; without a body, nothing."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def bullets_html(sentences: Iterable[str]) -> str:
    """A list of sentences; without sentences, nothing."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _pre(text: str) -> str:
    return f"<details open><summary>as numbers</summary><pre class='scroll'>{escape(text)}</pre></details>"


def figure_html(name: str, captions: Mapping[str, str]) -> str:
    """The place of a drawn figure below its caption; of one that is not drawn, nothing."""
    if name not in captions:
        return ""
    caption = f"<figcaption>{escape(captions[name])}</figcaption>"
    return f'<figure>{caption}<div id="{name}" class="figure"></div></figure>'


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


def _memory(best: Estimate, request: PlanRequest, captions: Mapping[str, str]) -> str:
    return figure_html("memory-stack", captions) + _pre(
        memory_breakdown(best.stages[best.worst_stage], request)
    )


def _groups(best: Estimate, request: PlanRequest) -> str:
    buttons = "".join(
        f'<button type="button" data-dimension="{name}" aria-pressed="false">{name} groups</button>'
        for name in shown_dimensions(best.plan)
    )
    return f'<div class="buttons">{buttons}</div>{cluster_map(best.plan, request.cluster)}'


def _sensitivity(answer: Answer) -> str:
    if answer.sensitivity is None:
        return ""
    table = table_html(SENSITIVITY_HEADERS, [row.words() for row in answer.sensitivity.rows])
    return f"{table}<p>{escape(answer.sensitivity.robustness)}</p>"


def table_html(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words, the last column wrapping; it scrolls where it is too wide."""
    head = "".join(f'<th scope="col" class="text">{escape(name)}</th>' for name in headers)
    cells = ["".join(f"<td class='text'>{escape(word)}</td>" for word in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    table = f"<table class='wrapped'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='scroll'>{table}</div>"


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
