(() => {
  // Tables: a click or Enter on a header sorts, an input filters, and long tables start short.
  const FEW = 12;

  each("section.table", (section) => {
    const table = section.querySelector("table");
    const line = section.querySelector(".filter");
    const told = line.querySelector("output");
    const toggle = section.querySelector(".toggle");
    const texts = new Map(Array.from(table.tBodies[0].rows,
      (row) => [row, row.textContent.toLowerCase()]));
    const all = told.textContent;
    let words = [];
    let limited = texts.size > FEW + 3;

    function refresh() {
      let found = 0;
      for (const row of table.tBodies[0].rows) {
        const fits = words.every((word) => texts.get(row).includes(word));
        found += fits;
        row.hidden = !fits || (limited && found > FEW);
      }
      told.textContent = words.length ? `${number.format(found)} of ${all}` : all;
      toggle.hidden = limited ? found <= FEW : texts.size <= FEW + 3;
      toggle.textContent = limited ? `Show all ${number.format(found)}` : "Show fewer";
      toggle.setAttribute("aria-expanded", String(!limited));
    }

    each("th button", (button) => {
      button.addEventListener("click", () => {
        sortRows(table, button.parentElement);
        refresh();
      });
    }, table.tHead);
    line.querySelector("input").addEventListener("input", (event) => {
      words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      refresh();
    });
    toggle.addEventListener("click", () => {
      limited = !limited;
      refresh();
    });
    line.hidden = false;
    refresh();
  });

  // The timeline: bars on a canvas, one canvas per rank, all on the same scale.
  const block = document.getElementById("timeline-data");
  if (!block) return;
  const data = JSON.parse(block.textContent);
  const box = document.getElementById("timeline");
  const range = document.getElementById("timeline-range");
  const told = document.getElementById("timeline-chosen");
  const LANE = 0, DEPTH = 1, BEGIN = 2, LENGTH = 3, NAME = 4, CATEGORY = 5, COUNT = 6, BUSY = 7;
  const AXIS = 20, LABEL = 19, ROW = 17, GAP = 7;
  const first = Math.min(...data.ranks.map((rank) => rank.begin_ms));
  const last = Math.max(...data.ranks.map((rank) => rank.begin_ms + rank.step_ms));
  const whole = Math.max(last - first, 1e-6);
  const view = { from: first, to: first + whole };
  let chosen = null;
  let colours = {};
  let font = "12px sans-serif";

  const ranks = data.ranks.map((rank, i) => {
    const canvas = box.querySelector(`canvas[data-rank="${i}"]`);
    const levels = rank.lanes.map(() => 0);
    rank.bars.forEach((bar) => {
      levels[bar[LANE]] = Math.max(levels[bar[LANE]], bar[DEPTH] + 1);
    });
    return { ...rank, canvas, context: canvas.getContext("2d"), levels, tops: [] };
  });
  const deepest = Math.max(...ranks.flatMap((rank) => rank.levels));
  let shown = Math.min(deepest, ranks.length > 4 ? 2 : ranks.length > 2 ? 3 : 7);

  function time(ms) {
    const size = Math.abs(ms);
    const digits = (value) => (value >= 99.95 ? value.toFixed(0)
      : value >= 9.995 ? value.toFixed(1) : value.toFixed(2));
    const sign = ms < 0 ? "−" : "";
    if (size >= 999.5) return `${sign}${digits(size / 1e3)} s`;
    if (size >= 0.9995) return `${sign}${digits(size)} ms`;
    return size < 5e-7 ? "0 ms" : `${sign}${digits(size * 1e3)} µs`;
  }

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    colours = { ink: read("--ink"), soft: read("--soft"), line: read("--line"), page: read("--page") };
    colours.bars = new Map(Object.entries(data.colours).map(([category, key]) => {
      const fill = read(`--c-${key}`);
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(fill.slice(i, i + 2), 16));
      return [category, { fill, ink: 0.299 * r + 0.587 * g + 0.114 * b > 125 ? "#111" : "#fff" }];
    }));
    font = getComputedStyle(document.body).fontFamily;
  }

  function layOut(rank) {
    let top = AXIS;
    rank.tops = rank.levels.map((levels) => {
      const here = top;
      top += LABEL + Math.min(levels, shown) * ROW + GAP;
      return here;
    });
    rank.height = top;
  }

  function draw(rank) {
    const width = rank.canvas.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    rank.canvas.width = Math.round(width * ratio);
    rank.canvas.height = Math.round(rank.height * ratio);
    rank.canvas.style.height = `${rank.height}px`;
    const c = rank.context;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, rank.height);
    const scale = width / (view.to - view.from);
    axis(c, width, rank, scale);
    c.textBaseline = "middle";
    c.font = `11px ${font}`;
    const letter = c.measureText("operator_name").width / 13;
    for (const bar of rank.bars) {
      if (bar[DEPTH] >= shown) continue;
      const left = (bar[BEGIN] - view.from) * scale;
      const right = left + bar[LENGTH] * scale;
      if (right < 0 || left > width) continue;
      const x = Math.max(left, -1);
      const w = Math.max(Math.min(right, width + 1) - x, 0.6);
      const y = rank.tops[bar[LANE]] + LABEL + bar[DEPTH] * ROW;
      const colour = colours.bars.get(bar[CATEGORY]);
      c.globalAlpha = bar[COUNT] > 1 ? 0.5 : 1;
      c.fillStyle = colour.fill;
      c.fillRect(x, y, w > 3 ? w - 0.7 : w, ROW - 1);
      c.globalAlpha = 1;
      if (bar === chosen) {
        c.strokeStyle = colours.ink;
        c.lineWidth = 2;
        c.strokeRect(x + 1, y + 1, Math.max(w - 2, 1), ROW - 3);
      }
      if (w > 34) {
        const name = bar[NAME];
        const room = Math.floor((w - 8) / letter);
        c.fillStyle = bar[COUNT] > 1 ? colours.ink : colour.ink;
        c.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, Math.max(x, 0) + 4, y + ROW / 2);
      }
    }
    c.fillStyle = colours.soft;
    rank.lanes.forEach((lane, i) => {
      if (rank.levels[i]) c.fillText(lane, 0, rank.tops[i] + LABEL / 2 + 1, width);
    });
  }

  function axis(c, width, rank, scale) {
    const about = (view.to - view.from) / Math.max(width / 110, 2);
    const power = 10 ** Math.floor(Math.log10(about));
    const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= about);
    c.font = `11px ${font}`;
    c.textBaseline = "middle";
    c.strokeStyle = colours.line;
    c.lineWidth = 1;
    const [unit, size] = view.to - view.from >= 1 ? ["ms", 1] : ["µs", 1e-3];
    const tick = (t) => `${number.format(Number((t / size).toPrecision(6)))} ${unit}`;
    const begin = Math.ceil((view.from - first) / step);
    for (let i = begin; i * step <= view.to - first; i += 1) {
      const t = i * step;
      const x = Math.round((t + first - view.from) * scale) + 0.5;
      c.beginPath();
      c.moveTo(x, 0);
      c.lineTo(x, rank.height);
      c.stroke();
      c.fillStyle = colours.soft;
      if (x < width - 40) c.fillText(tick(t), x + 4, AXIS / 2);
    }
    for (const edge of [rank.begin_ms, rank.begin_ms + rank.step_ms]) {
      const x = Math.round((edge - view.from) * scale);
      c.fillStyle = colours.soft;
      if (x > 0 && x < width) c.fillRect(x, AXIS, 1, rank.height - AXIS);
    }
  }

  let waiting = false;
  function redraw() {
    range.textContent = `${time(view.from - first)} to ${time(view.to - first)}`;
    box.dataset.from = String(view.from - first);
    box.dataset.to = String(view.to - first);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      ranks.forEach((rank) => { layOut(rank); draw(rank); });
    });
  }

  function show(from, length) {
    const kept = Math.min(Math.max(length, whole / 1e6, 1e-5), whole);
    view.from = Math.min(Math.max(from, first), first + whole - kept);
    view.to = view.from + kept;
    redraw();
  }

  function zoom(factor, at = 0.5) {
    const length = view.to - view.from;
    show(view.from + at * length * (1 - factor), length * factor);
  }

  const pan = (part) => show(view.from + part * (view.to - view.from), view.to - view.from);

  function choose(rank, bar) {
    chosen = bar;
    told.replaceChildren();
    if (bar) {
      const name = document.createElement("b");
      name.textContent = bar[NAME];
      const several = bar[COUNT] > 1 ? `, ${time(bar[BUSY])} of it in events` : "";
      told.append(name, ` · ${bar[CATEGORY]} · lasts ${time(bar[LENGTH])}${several}`
        + ` · starts at ${time(bar[BEGIN] - rank.begin_ms)} · ${rank.name}, ${rank.lanes[bar[LANE]]}`);
    } else {
      told.textContent = "Point at a bar or press n to see its details.";
    }
    redraw();
  }

  function barAt(rank, event) {
    const edge = rank.canvas.getBoundingClientRect();
    const slack = 2 * (view.to - view.from) / edge.width;
    const at = view.from + (event.clientX - edge.left) / edge.width * (view.to - view.from);
    const y = event.clientY - edge.top;
    let found = null;
    for (const bar of rank.bars) {
      const top = rank.tops[bar[LANE]] + LABEL + bar[DEPTH] * ROW;
      if (bar[DEPTH] >= shown || y < top || y >= top + ROW) continue;
      if (at < bar[BEGIN] - slack || at > bar[BEGIN] + bar[LENGTH] + slack) continue;
      const inside = at >= bar[BEGIN] && at <= bar[BEGIN] + bar[LENGTH];
      if (inside) return bar;
      found = found || bar;
    }
    return found;
  }

  function nextBar(way) {
    const least = (view.to - view.from) / 400;
    const seen = ranks.flatMap((rank) => rank.bars
      .filter((bar) => bar[DEPTH] < shown && bar[LENGTH] >= least
        && bar[BEGIN] < view.to && bar[BEGIN] + bar[LENGTH] > view.from)
      .sort((a, b) => a[LANE] - b[LANE] || a[BEGIN] - b[BEGIN] || a[DEPTH] - b[DEPTH])
      .map((bar) => [rank, bar]));
    if (!seen.length) return;
    const now = seen.findIndex(([, bar]) => bar === chosen);
    const next = now < 0 ? (way > 0 ? 0 : seen.length - 1) : (now + way + seen.length) % seen.length;
    choose(...seen[next]);
  }

  function zoomTo(bar) {
    if (bar) show(bar[BEGIN] - 0.1 * bar[LENGTH], 1.2 * bar[LENGTH]);
  }

  function levels(change) {
    shown = Math.min(Math.max(shown + change, 1), deepest);
    redraw();
  }

  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25),
    all: () => show(first, whole), deep: () => levels(1), shallow: () => levels(-1),
    next: () => nextBar(1), previous: () => nextBar(-1), to: () => zoomTo(chosen),
  };
  const keys = {
    "+": "in", "=": "in", "-": "out", "_": "out", ArrowLeft: "left", ArrowRight: "right",
    "0": "all", Home: "all", n: "next", p: "previous",
  };

  each("[data-do]", (button) => {
    button.addEventListener("click", () => actions[button.dataset.do]());
  }, box);
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const action = keys[event.key] || (event.key === "Enter" && event.target === box ? "to" : null);
    if (!action) return;
    event.preventDefault();
    actions[action]();
  });

  ranks.forEach((rank) => {
    const { canvas } = rank;
    const held = new Map();
    let moved = false;
    canvas.addEventListener("wheel", (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      // Scrolling past the timeline should not zoom it.
      if (!sideways && !event.ctrlKey && !box.contains(document.activeElement)) return;
      event.preventDefault();
      const edge = canvas.getBoundingClientRect();
      if (sideways) pan(event.deltaX / edge.width);
      else zoom(1.0018 ** event.deltaY, (event.clientX - edge.left) / edge.width);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, event.clientX);
      moved = false;
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held.has(event.pointerId)) {
        const bar = barAt(rank, event);
        if (bar && bar !== chosen) choose(rank, bar);
        return;
      }
      const before = Array.from(held.values());
      const was = held.get(event.pointerId);
      held.set(event.pointerId, event.clientX);
      const edge = canvas.getBoundingClientRect();
      if (held.size === 2) {
        const after = Array.from(held.values());
        const apart = (pair) => Math.max(Math.abs(pair[0] - pair[1]), 10);
        zoom(apart(before) / apart(after), ((after[0] + after[1]) / 2 - edge.left) / edge.width);
        moved = true;
      } else if (held.size === 1 && (moved || Math.abs(event.clientX - was) > 1)) {
        moved = true;
        pan((was - event.clientX) / edge.width);
      }
    });
    const release = (event) => {
      if (held.delete(event.pointerId) && !moved && event.type === "pointerup") {
        choose(rank, barAt(rank, event));
        box.focus({ preventScroll: true });
      }
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("dblclick", (event) => zoomTo(barAt(rank, event)));
  });

  each(".tools, .chosen", (part) => { part.hidden = false; }, box);
  const recolour = () => { readColours(); redraw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  matchMedia("print").addEventListener("change", () => {
    readColours();
    ranks.forEach(draw);
  });
  new ResizeObserver(redraw).observe(box);
  recolour();
})();
