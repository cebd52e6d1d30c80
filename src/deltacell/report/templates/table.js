"use strict";
const each = (selector, run, within = document) => within.querySelectorAll(selector).forEach(run);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });

// Sorts the rows of a table by the column of a header; sorting again reverses the order.
function valueOf(row, column) {
  const cell = row.cells[column];
  if ("value" in cell.dataset) return Number(cell.dataset.value);
  return cell.classList.contains("number") ? null : cell.textContent.toLowerCase();
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortRows(table, header) {
  const isNumber = header.classList.contains("number");
  const was = header.getAttribute("aria-sort");
  const way = was ? (was === "ascending" ? "descending" : "ascending")
    : (isNumber ? "descending" : "ascending");
  each("th[aria-sort]", (th) => th.removeAttribute("aria-sort"), table.tHead);
  header.setAttribute("aria-sort", way);
  const sign = way === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [valueOf(row, header.cellIndex), row]);
  rows.sort(([a], [b]) => {
    // Unknown values come last in both orders.
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * compare(a, b);
  });
  // Moving thousands of rows one by one inside the page would take seconds.
  body.remove();
  body.replaceChildren();
  body.append(...rows.map(([, row]) => row));
  table.append(body);
}
