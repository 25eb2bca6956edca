"use strict";
// Sortable tables, group buttons of the cluster picture, figures that follow the reader's colour scheme.
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const cell = button.closest("th");
    const table = button.closest("table");
    const column = [...cell.parentNode.children].indexOf(cell);
    const ascending = cell.getAttribute("aria-sort") !== "ascending";
    for (const other of cell.parentNode.children) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const value = (row) => row.children[column].dataset.value ?? row.children[column].textContent;
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      const numeric = Number(x) - Number(y);
      return (Number.isNaN(numeric) ? x.localeCompare(y) : numeric) * (ascending ? 1 : -1);
    };
    const body = table.tBodies[0];
    for (const row of [...body.rows].sort(order)) body.append(row);
  });
}

const map = document.getElementById("cluster");
function colourBy(dimension) {
  for (const gpu of map.querySelectorAll("rect")) gpu.setAttribute("class", "g" + gpu.dataset[dimension]);
  for (const button of document.querySelectorAll("[data-dimension]")) {
    button.setAttribute("aria-pressed", String(button.dataset.dimension === dimension));
  }
}
if (map) {
  const buttons = [...document.querySelectorAll("[data-dimension]")];
  for (const button of buttons) button.addEventListener("click", () => colourBy(button.dataset.dimension));
  map.addEventListener("pointerover", (event) => {
    const label = event.target.dataset && event.target.dataset.label;
    if (label) document.getElementById("cluster-rank").textContent = label;
  });
  colourBy(buttons[0].dataset.dimension);
}

const figures = JSON.parse(document.getElementById("figures").textContent);
const canHover = matchMedia("(hover: hover)").matches;
function draw() {
  for (const [name, figure] of Object.entries(figures)) {
    const ink = { color: style("--ink") };
    const axis = { gridcolor: style("--line"), zerolinecolor: style("--line"), linecolor: style("--line") };
    const layout = { ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: ink,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--dim"), activecolor: style("--mark") } };
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) layout[key] = { ...layout[key], ...axis };
    Plotly.react(name, figure.data, layout, { responsive: true, displaylogo: false, displayModeBar: canHover ? "hover" : false });
  }
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
