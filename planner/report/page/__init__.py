"""The answer as one offline page: tables, figures, the cluster's picture, every reason and source."""

from planner.report.page.build import (
    answer_page,
    bullets_html,
    figure_html,
    section_html,
    table_html,
    whole_page,
)

__all__ = ["answer_page", "bullets_html", "figure_html", "section_html", "table_html", "whole_page"]
