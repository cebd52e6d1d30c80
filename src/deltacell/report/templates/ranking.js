(() => {
  const block = document.getElementById("ranking-data");
  const table = document.getElementById("sets");
  if (!table) return;
  const data = JSON.parse(block.textContent);
  data.rows.forEach((row) => {
    if (row.status === "tested") row.status = "tested, not significant";
  });
  const FEW = 100;
  const body = table.tBodies[0];
  const panel = document.getElementById("panel");
  const beside = document.getElementById("beside");
  const form = document.getElementById("filters");
  const search = document.getElementById("search");
  const clear = document.getElementById("clear");
  const further = document.getElementById("further");
  const isWide = matchMedia("(min-width: 68rem)");
  const rowOf = (element) => data.rows[Number(element.dataset.row)];
  const elements = Array.from(body.rows);
  const wordsOf = data.genes.map((names) => names.map((name) => name.toLowerCase()));
  let most = FEW;
  let fitting = elements;
  let chosen = null;

  function make(tag, attributes = {}, ...inside) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }

  function draw(tag, attributes, ...inside) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  }

  // A facet lists the values of a row; "some" and "none" can be chosen as well.
  const yes = { true: "linked", false: "not linked", null: "unknown" };
  const facets = {
    end: { of: (row) => (row.end === null ? [] : [row.end]), any: "both" },
    status: { of: (row) => [row.status], any: "any" },
    relation: { of: (row) => row.relations.map((i) => data.relations[i][2]), any: "any", open: true },
    pathway: { of: (row) => row.pathways, any: "any", open: true },
    complex: { of: (row) => row.complexes, any: "any", open: true },
    evidence: { of: (row) => Array.from(new Set(row.evidence.map(([kind]) => kind))), any: "any", open: true },
    linked: { of: (row) => [yes[String(row.linked)]], any: "any" },
  };
  const SOME = "some", NONE = "none", IS = "is ";

  function fits(values, wanted) {
    if (wanted === "") return true;
    if (wanted === SOME) return values.length > 0;
    if (wanted === NONE) return values.length === 0;
    return values.includes(wanted.slice(IS.length));
  }

  for (const [name, facet] of Object.entries(facets)) {
    facet.select = form.querySelector(`[data-facet="${name}"]`);
    facet.values = data.rows.map((row) => facet.of(row));
    const counts = new Map();
    facet.values.flat().forEach((value) => counts.set(value, (counts.get(value) || 0) + 1));
    const listed = Array.from(counts).sort(([a, m], [b, n]) => n - m || compare(a, b));
    const options = [["", facet.any]];
    if (facet.open) options.push([SOME, "some"], [NONE, "none"]);
    options.push(...listed.map(([value]) => [IS + value, value]));
    facet.options = options.map(([value, said]) => {
      const clipped = said.length > 60 ? `${said.slice(0, 59)}…` : said;
      const option = make("option", { value });
      facet.select.append(option);
      return { option, value, said: clipped };
    });
    // A facet in which all rows are equal is hidden.
    facet.select.parentElement.hidden = facet.open ? listed.length === 0 : listed.length < 2;
    facet.select.addEventListener("change", () => { most = FEW; refresh(); });
  }

  // A complete name matches that gene only, so that RAD5 does not match RAD51.
  function genesOf(word) {
    const whole = wordsOf.map((names) => names.includes(word));
    return whole.includes(true) ? whole : wordsOf.map((names) => names.some((n) => n.includes(word)));
  }

  function sought() {
    const text = search.value.trim().toLowerCase();
    if (!text) return [];
    // A name may contain a space.
    if (wordsOf.some((names) => names.includes(text))) return [genesOf(text)];
    return text.split(/[\s,;]+/).filter(Boolean).map(genesOf);
  }

  function refresh() {
    const words = sought();
    const wanted = Object.values(facets).map((facet) => [facet, facet.select.value]);
    const hasWords = (genes) => words.every((found) => genes.some((gene) => found[gene]));
    const misses = data.rows.map((row, i) => {
      if (!hasWords(row.genes)) return null;
      return wanted.filter(([facet, value]) => !fits(facet.values[i], value)).map(([facet]) => facet);
    });
    for (const [facet, value] of wanted) {
      // The number of rows that each option of this facet would leave.
      const open = facet.values.filter((_, i) => misses[i] !== null
        && misses[i].every((other) => other === facet));
      for (const { option, value: mine, said } of facet.options) {
        const n = open.filter((values) => fits(values, mine)).length;
        option.textContent = mine === "" ? said : `${said} (${number.format(n)})`;
      }
      facet.select.classList.toggle("set", value !== "");
    }
    lift();
    fitting = Array.from(body.rows).filter((element) => {
      const missed = misses[Number(element.dataset.row)];
      return missed !== null && missed.length === 0;
    });
    const shown = fitting.slice(0, most);
    const isShown = new Set(shown);
    elements.forEach((element) => {
      if (element.hidden === isShown.has(element)) element.hidden = !element.hidden;
    });
    const isFiltered = words.length > 0 || wanted.some(([, value]) => value !== "");
    const all = `${number.format(elements.length)} ${elements.length === 1 ? "row" : "rows"}`;
    document.getElementById("found").textContent = isFiltered
      ? `${number.format(fitting.length)} of ${all}` : all;
    clear.hidden = !isFiltered;
    document.getElementById("nothing").hidden = fitting.length > 0;
    further.hidden = fitting.length <= most;
    further.textContent = `Show all ${number.format(fitting.length)}`;
    const scatter = document.querySelector("#scatter .scatter");
    if (scatter) {
      scatter.classList.toggle("some", words.length > 0);
      scatter.querySelectorAll(".points circle").forEach((circle, i) => {
        circle.classList.toggle("with", words.length > 0 && hasWords(data.points[i]));
      });
    }
    if (!shown.includes(chosen)) choose(isWide.matches ? shown[0] || null : null);
    else choose(chosen);
  }

  // The panel is next to the list on wide screens, and below the row on narrow ones.
  function lift() {
    beside.append(panel);
    body.querySelectorAll(".within").forEach((row) => row.remove());
  }

  function choose(element) {
    lift();
    if (chosen) chosen.removeAttribute("aria-selected");
    body.querySelectorAll("tr[tabindex='0']").forEach((row) => row.setAttribute("tabindex", "-1"));
    chosen = element;
    const reached = chosen || fitting[0];
    if (reached) reached.setAttribute("tabindex", "0");
    panel.hidden = !chosen;
    if (!chosen) return;
    chosen.setAttribute("aria-selected", "true");
    panel.replaceChildren(...described(rowOf(chosen)));
    if (isWide.matches) return;
    const cell = make("td", { colspan: String(chosen.cells.length) }, panel);
    chosen.after(make("tr", { class: "within" }, cell));
  }

  function described(row) {
    const genes = row.genes.map((gene) => data.genes[gene]);
    const title = make("h2", {}, ...genes.map(([, name]) => make("bdi", {}, clip(name, 40))));
    const parts = [title];
    if (genes.some(([gene, name]) => gene !== name)) {
      parts.push(make("p", { class: "systematic" }, ...genes.flatMap(([gene], i) => [
        i ? ", " : "", make("bdi", {}, clip(gene, 60))])));
    }
    parts.push(network(row, genes), legend(row));
    const facts = make("dl");
    const tell = (name, ...value) => facts.append(make("dt", {}, name), make("dd", {}, ...value));
    const strong = (text) => make("span", { class: "value" }, text);
    tell("score", strong(row.score));
    if (row.interval !== null) tell("90 % interval", row.interval);
    if (row.measured !== null) tell("measured", strong(row.measured));
    if (row.end) tell("rank", `${number.format(row.rank)} of the ${row.end}`);
    tell("status", row.status);
    if (row.linked) tell("linked", "too close on a chromosome to be combined");
    if (row.linked === null) tell("linked", "unknown: a position is missing");
    for (const [name, values] of [["pathways", row.pathways], ["complexes", row.complexes]]) {
      if (!values.length) continue;
      const listed = values.map((value) => make("span", {}, make("bdi", {}, value)));
      tell(`shared ${name}`, make("div", { class: "listed" }, ...listed));
    }
    parts.push(facts);
    // Evidence that is not among the facts above: measured sets, lost reactions and shared terms.
    const others = row.evidence.filter(([kind]) => !FACTS.includes(kind));
    for (const kind of new Set(others.map(([one]) => one))) {
      const lines = others.filter(([one]) => one === kind);
      parts.push(make("div", { class: "votes" }, make("h3", {}, kind),
        ...lines.map(([, text]) => make("p", {}, make("bdi", {}, text)))));
    }
    if (!row.evidence.length) {
      parts.push(make("p", { class: "soft" }, "No evidence: no set next to this one was measured, and nothing known connects its genes."));
    }
    row.genes.forEach((gene) => {
      const [description, link] = data.facts[gene];
      if (description === null && link === null) return;
      const about = make("p", { class: "about-gene" }, make("bdi", { class: "name" }, clip(data.genes[gene][1], 40)));
      if (link !== null) about.append(make("a", { href: link, rel: "noreferrer", target: "_blank" }, "database"));
      if (description !== null) about.append(" ", make("bdi", {}, description));
      parts.push(about);
    });
    const more = make("p", { class: "more-of" }, "All sets with");
    genes.forEach(([gene, name]) => {
      const button = make("button", { type: "button", title: name }, make("bdi", {}, clip(name, 30)));
      button.addEventListener("click", () => {
        search.value = gene;
        most = FEW;
        refresh();
        search.focus();
      });
      more.append(button);
    });
    parts.push(more);
    // Users paste the command, so it is not shown for names that a shell would interpret.
    if (genes.every(([gene]) => /^[A-Za-z0-9_][A-Za-z0-9_.:-]*$/.test(gene))) {
      const command = `deltacell why RUN "${genes.map(([gene]) => gene).join(" ")}"`;
      parts.push(make("p", { class: "soft" }, "To see what the score is based on: ", make("code", {}, command)));
    }
    return parts;
  }

  const FACTS = ["joined by", "shared complexes", "shared pathways"];

  // A spreadsheet would run a text that begins like this as a formula.
  const field = (value) => {
    const text = String(value === null ? "" : value);
    const safe = /^[=+@\t\r-]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  function csv() {
    const rows = fitting.map(rowOf);
    const widest = Math.max(0, ...rows.map((row) => row.genes.length));
    const places = Array.from({ length: widest }, (_, i) => i);
    const head = ["end", "rank", ...places.map((i) => `gene${i + 1}`), ...places.map((i) => `name${i + 1}`),
      "score", "low", "high", "measured", "status", "relations", "pathways", "complexes", "evidence"];
    const name = (row, i, which) => (i < row.genes.length ? data.genes[row.genes[i]][which] : "");
    const lines = rows.map((row) => [row.end, row.rank, ...places.map((i) => name(row, i, 0)),
      ...places.map((i) => name(row, i, 1)), row.value, row.low, row.high, row.measured_value, row.status,
      row.relations.map((i) => data.relations[i][2]).join("; "), row.pathways.join("; "),
      row.complexes.join("; "), row.evidence.map((line) => line.join(": ")).join("; ")]);
    return [head, ...lines].map((line) => line.map(field).join(",")).join("\n");
  }

  document.getElementById("download").addEventListener("click", () => {
    const link = make("a", {
      href: URL.createObjectURL(new Blob([csv(), "\n"], { type: "text/csv" })), download: `${data.file}.csv`,
    });
    link.click();
    URL.revokeObjectURL(link.href);
  });

  const clip = (text, most_letters) => {
    const letters = Array.from(text);
    return letters.length > most_letters ? `${letters.slice(0, most_letters - 1).join("")}…` : text;
  };

  function legend(row) {
    if (!row.links.length) {
      return make("p", { class: "soft" }, row.genes.length > 1 ? "No relation connects these genes." : "");
    }
    const list = make("ul", { class: "legend" });
    const there = new Set(row.links.map((link) => link[2]));
    for (const relation of Array.from(there).sort((a, b) => a - b)) {
      const [colour, dashes, name] = data.relations[relation];
      const key = draw("svg", { class: `key k${colour} d${dashes}`, viewBox: "0 0 18 8", "aria-hidden": "true" },
        draw("path", { d: "M0 4h18" }));
      list.append(make("li", {}, key, make("bdi", { title: name }, clip(name, 40))));
    }
    return list;
  }

  // Genes are on a circle, the first on top; links between the same two genes are curved apart.
  function network(row, genes) {
    const n = genes.length;
    const [width, height, radius] = [320, n < 3 ? 110 : 190, 66];
    const places = genes.map((_, i) => {
      if (n === 1) return [width / 2, height / 2];
      const turn = n === 2 ? Math.PI * (i + 1) : 2 * Math.PI * i / n - Math.PI / 2;
      const drop = n === 3 ? 16 : 0;
      return [width / 2 + 1.25 * radius * Math.cos(turn), height / 2 + drop + radius * Math.sin(turn)];
    });
    const said = row.links.map(([a, b, relation]) => (
      `${genes[a][1]} and ${genes[b][1]} by ${data.relations[relation][2]}`));
    const svg = draw("svg", {
      class: "network", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": said.length ? `Links: ${said.join("; ")}.` : "No links.",
    });
    const groups = new Map();
    row.links.forEach((link) => {
      const pair = [link[0], link[1]].sort((a, b) => a - b).join();
      if (!groups.has(pair)) groups.set(pair, []);
      groups.get(pair).push(link);
    });
    groups.forEach((links, pair) => {
      const [a, b] = pair.split(",").map((i) => places[Number(i)]);
      const length = Math.hypot(b[0] - a[0], b[1] - a[1]) || 1;
      const across = [(a[1] - b[1]) / length, (b[0] - a[0]) / length];
      const apart = Math.min(22, 110 / links.length);
      links.forEach((link, i) => {
        const bow = 2 * apart * (i - (links.length - 1) / 2) / 1.4;
        const middle = [0, 1].map((d) => ((a[d] + b[d]) / 2 + bow * across[d]).toFixed(1));
        const [colour, dashes, name] = data.relations[link[2]];
        svg.append(draw("path", {
          class: `edge k${colour} d${dashes}`, d: `M${a.map((x) => x.toFixed(1))}Q${middle} ${b.map((x) => x.toFixed(1))}`,
        }, draw("title", {}, name)));
      });
    });
    places.forEach(([x, y], i) => {
      const isAbove = n === 2 || y < height / 2 + 1;
      svg.append(draw("g", { class: "node" },
        draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 8 }),
        draw("text", { x: x.toFixed(1), y: (y + (isAbove ? -15 : 25)).toFixed(1) }, clip(genes[i][1], 14)),
        draw("title", {}, genes[i][1])));
    });
    return svg;
  }

  function go(element) {
    if (!element) return;
    const place = fitting.indexOf(element);
    if (place >= most) {
      most = Infinity;
      refresh();
    }
    choose(element);
    element.focus();
    element.scrollIntoView({ block: "nearest" });
  }

  each("th button", (button) => {
    button.addEventListener("click", () => {
      lift();
      sortRows(table, button.parentElement);
      refresh();
    });
  }, table.tHead);
  search.addEventListener("input", () => { most = FEW; refresh(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  further.addEventListener("click", () => { most = Infinity; refresh(); });
  clear.addEventListener("click", () => {
    search.value = "";
    Object.values(facets).forEach((facet) => { facet.select.value = ""; });
    most = FEW;
    refresh();
    search.focus();
  });
  body.addEventListener("click", (event) => {
    const element = event.target.closest("tr[data-row]");
    if (!element) return;
    const again = element === chosen && !isWide.matches;
    choose(again ? null : element);
    element.focus({ preventScroll: true });
  });
  body.addEventListener("keydown", (event) => {
    const element = event.target;
    if (!element.matches("tr[data-row]") || event.ctrlKey || event.metaKey || event.altKey) return;
    const place = fitting.indexOf(element);
    const to = {
      ArrowDown: fitting[place + 1], ArrowUp: fitting[place - 1], Home: fitting[0],
      End: fitting[fitting.length - 1], Enter: element, " ": element,
    };
    if (!(event.key in to)) return;
    event.preventDefault();
    go(to[event.key]);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input, select, textarea")) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && event.target === search && search.value) {
      search.value = "";
      refresh();
    }
  });
  isWide.addEventListener("change", () => choose(chosen));

  table.setAttribute("role", "grid");
  elements.forEach((element) => element.setAttribute("tabindex", "-1"));
  document.querySelector(".split").classList.add("live");
  form.hidden = false;
  document.getElementById("keys").hidden = false;
  refresh();
})();
