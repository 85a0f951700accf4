// Keeps panel, table and search in step with the graph that graph.js draws. Every text from the
// report goes through textContent; the page's policy lets no other way work.

// ---- the panel -------------------------------------------------------------------------------
const make = (name, words, ...children) => {
  const made = document.createElement(name);
  if (words) made.textContent = words;
  made.append(...children);
  return made;
};
const svg = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const swatch = (k) => {
  const made = svg("svg", { class: "swatch", viewBox: "0 0 16 16", "aria-hidden": "true" });
  const over = Math.floor(k / data.patterns[0]) % data.patterns[1];
  made.append(svg("rect", { width: 16, height: 16, rx: 3, class: `fill-${k % data.patterns[0]}` }),
    svg("rect", { width: 16, height: 16, rx: 3, fill: `url(#pattern-${over})` }));
  return made;
};
const nodeButton = (v) => {
  const made = make("button", data.names[v]);
  made.type = "button";
  made.className = "node";
  made.addEventListener("click", () => { choose(v, false); locate(v); });
  return made;
};
const facts = (pairs) => {
  const made = make("dl");
  for (const [name, value] of pairs) made.append(make("dt", name), make("dd", value));
  return made;
};
const folded = (title, words) => {
  const pre = make("pre", words);
  pre.tabIndex = 0;
  return make("details", "", make("summary", title), pre);
};
const show = () => {
  panel.replaceChildren();
  const k = chosen.kernel, v = chosen.node;
  const heading = make("h3");
  heading.tabIndex = -1;
  panel.append(heading);
  if (k < 0 && v < 0) {
    heading.append("Nothing selected");
    const words = "Select an operation, or a kernel in the table: its operations, bytes, times "
      + "and text are shown here.";
    panel.append(make("p", words));
    return;
  }
  if (k < 0) heading.append(data.names[v]);
  else heading.append(swatch(k), `Kernel ${k}`);
  if (v >= 0) showNode(v, k);
  if (k >= 0) showKernel(k);
};
const showNode = (v, k) => {
  const pairs = [["opcode", text(data.ops, v)]];
  if (k >= 0) pairs.unshift(["operation", data.names[v]]);
  if (text(data.written, v)) pairs.push(["in the script", text(data.written, v)]);
  pairs.push(["reads", `${data.inputs[v].length}`], ["read by", `${readers[v].length}`]);
  panel.append(facts(pairs));
  const reason = text(data.reasons, v);
  if (k < 0 && reason) {
    const because = data.meanings[reason];
    panel.append(make("p", `Left as it was, ${reason}${because ? `: ${because}` : ""}.`));
    if (text(data.details, v)) panel.append(make("p", text(data.details, v)));
  } else if (k < 0) {
    panel.append(make("p", "No work of its own: a source, or a view of its input."));
  }
};
const showKernel = (k) => {
  const told = data.kernels[k];
  panel.append(make("p", told.contents), make("p", "", make("code", told.name)), facts(told.facts));
  const list = make("ul");
  for (const v of members[k].slice(0, LISTED)) list.append(make("li", "", nodeButton(v)));
  const more = members[k].length - LISTED;
  if (more > 0) list.append(make("li", `and ${more} more: search, or see the list below`));
  const held = make("details", "", make("summary", `Operations here (${members[k].length})`), list);
  held.open = members[k].length <= 12;
  panel.append(held);
  const source = data.sources[told.name], loops = data.texts[told.name];
  if (loops) panel.append(folded("Loops", loops));
  if (source) panel.append(folded(data.language, source));
};
const said = (words) => { byId("said").textContent = words; };
const spoken = (v) => {
  const k = data.kernel[v], reason = text(data.reasons, v);
  const where = k >= 0 ? `kernel ${k}` : reason ? `left as it was, ${reason}` : "no work";
  return `${data.names[v]}, ${text(data.ops, v)}, ${where}`;
};
const choose = (v, move = true) => {
  chosen.node = v;
  chosen.kernel = v >= 0 ? data.kernel[v] : -1;
  if (v >= 0) {
    said(spoken(v));
    if (move && !visible(v)) locate(v);
  }
  chosenRows();
  show();
  repaint();
};
const chooseKernel = (k) => {
  chosen.kernel = k;
  chosen.node = -1;
  chosenRows();
  show();
  repaint();
  if (!members[k].length) { said(`kernel ${k}`); return; }
  const xs = members[k].map((v) => data.x[v]), ys = members[k].map((v) => data.y[v]);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  const [w, h] = [Math.max(...xs) - left + WIDTH, Math.max(...ys) - top + HEIGHT];
  const scale = Math.max(least(), Math.min(1, (wide - 80) / w, (high - 110) / h));
  glide((wide - w * scale) / 2 - left * scale, (high - 30 - h * scale) / 2 - top * scale, scale);
  said(`kernel ${k}, ${members[k].length} operations`);
};
const chosenRows = () => {
  for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
  const button = document.querySelector(`button.kernel[data-kernel="${chosen.kernel}"]`);
  if (button) button.closest("tr").classList.add("chosen");
};

// ---- keys and pointers -----------------------------------------------------------------------
const first = () => (matches.length ? matches[0] : (data.rows[0] || [])[0]);
const beside = (v, by) => {
  const row = data.rows[rowOf[v]], next = row[placeIn[v] + by];
  if (next !== undefined) return next;
  const other = data.rows[rowOf[v] + by];
  return other ? other[by > 0 ? 0 : other.length - 1] : v;
};
const KEYS = {
  ArrowRight: (v) => beside(v, 1), ArrowLeft: (v) => beside(v, -1),
  ArrowUp: (v) => (data.inputs[v].length ? data.inputs[v][0] : v),
  ArrowDown: (v) => (readers[v].length ? readers[v][0] : v),
  Home: () => data.rows[0][0],
  End: () => data.rows[data.rows.length - 1][data.rows[data.rows.length - 1].length - 1],
};
stage.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !count) return;
  const { key } = event;
  if (KEYS[key]) choose(chosen.node < 0 ? first() : KEYS[key](chosen.node));
  else if (key === "+" || key === "=") zoom(1.25);
  else if (key === "-") zoom(0.8);
  else if (key === "0") fit();
  else if (key === "Enter" && (chosen.node >= 0 || chosen.kernel >= 0)) {
    panel.querySelector("h3").focus();
  }
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (panel.contains(document.activeElement)) stage.focus();
  else if (chosen.node >= 0 || chosen.kernel >= 0) { choose(-1); said("nothing selected"); }
});
const dragged = { id: -1, x: 0, y: 0, far: 0 };
stage.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  Object.assign(dragged, { id: event.pointerId, x: event.clientX, y: event.clientY, far: 0 });
  stage.setPointerCapture(event.pointerId);
  stage.classList.add("held");
});
stage.addEventListener("pointermove", (event) => {
  if (event.pointerId !== dragged.id) return;
  const x = event.clientX - dragged.x, y = event.clientY - dragged.y;
  Object.assign(dragged, { x: event.clientX, y: event.clientY });
  dragged.far += Math.abs(x) + Math.abs(y);
  at.x += x;
  at.y += y;
  hold();
  redraw();
});
const release = (event) => {
  if (event.pointerId !== dragged.id) return;
  dragged.id = -1;
  stage.classList.remove("held");
  if (dragged.far > 6 || event.type === "pointercancel") return;
  const frame = stage.getBoundingClientRect();
  const x = event.clientX - frame.left - 1, y = event.clientY - frame.top - 1;
  if (corner && x >= corner.x && y <= corner.y + corner.h && y >= corner.y) {
    at.x = wide / 2 - (x - corner.x) / corner.scale * at.scale;
    at.y = high / 2 - (y - corner.y) / corner.scale * at.scale;
    hold();
    redraw();
    return;
  }
  const gx = (x - at.x) / at.scale, gy = (y - at.y) / at.scale;
  const [hit = -1] = near(gx, gy, gx + 0.001, gy + 0.001);
  choose(hit, false);
};
stage.addEventListener("pointerup", release);
stage.addEventListener("pointercancel", release);
stage.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  const frame = stage.getBoundingClientRect();
  zoom(Math.exp(-event.deltaY * 0.004), event.clientX - frame.left, event.clientY - frame.top);
}, { passive: false });
byId("closer").addEventListener("click", () => zoom(1.4));
byId("wider").addEventListener("click", () => zoom(1 / 1.4));
byId("fit").addEventListener("click", fit);
for (const one of document.querySelectorAll("[data-kernel]")) {
  one.addEventListener("click", () => {
    chooseKernel(Number(one.dataset.kernel));
    byId("graph").scrollIntoView();
    if (one.matches("button")) panel.querySelector("h3").focus({ preventScroll: true });
  });
}

// ---- search and the list ---------------------------------------------------------------------
const list = byId("list"), which = byId("which"), search = byId("search");
let listed = [], from = 0, turn = -1;
const row = (v) => {
  const k = data.kernel[v], reason = text(data.reasons, v);
  const why = k >= 0 ? "" : [reason, text(data.details, v)].filter(Boolean).join(": ");
  const cells = [make("td", "", nodeButton(v)), make("td", text(data.ops, v)),
    make("td", k >= 0 ? `K${k}` : ""), make("td", why)];
  cells[2].className = "n";
  return make("tr", "", ...cells);
};
const fill = () => {
  list.replaceChildren(...listed.slice(from, from + PAGE).map(row));
  const last = Math.min(from + PAGE, listed.length);
  byId("range").textContent = listed.length
    ? `${(from + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of `
      + listed.length.toLocaleString("en") : "none";
  byId("back").disabled = from === 0;
  byId("next").disabled = last >= listed.length;
};
const kinds = { "": () => true, kernel: (v) => data.kernel[v] >= 0,
  left: (v) => data.kernel[v] < 0 && data.reasons[v] > 0 };
const relist = () => {
  listed = [];
  for (let v = 0; v < count; v += 1) {
    if (kinds[which.value](v) && (!matching || matching.has(v))) listed.push(v);
  }
  from = 0;
  fill();
};
const find = () => {
  const words = search.value.trim().toLowerCase();
  const fits = (one) => one.toLowerCase().includes(words);
  const known = data.strings.map(fits);
  matches = [];
  for (let v = 0; words && v < count; v += 1) {
    if (fits(data.names[v]) || known[data.ops[v]] || known[data.reasons[v]]
        || known[data.written[v]]) matches.push(v);
  }
  matching = words ? new Set(matches) : null;
  turn = -1;
  const plural = matches.length === 1 ? "match" : "matches";
  byId("matches").textContent = words ? `${matches.length.toLocaleString("en")} ${plural}` : "";
  relist();
  repaint();
};
search.addEventListener("input", find);
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && matches.length) {
    turn = (turn + (event.shiftKey ? -1 : 1) + matches.length) % matches.length;
    choose(matches[turn], false);
    locate(matches[turn]);
    byId("matches").textContent = `${turn + 1} of ${matches.length.toLocaleString("en")}`;
  }
  if (event.key === "Escape" && search.value) {
    search.value = "";
    find();
    event.stopPropagation();
  }
});
which.addEventListener("change", relist);
byId("back").addEventListener("click", () => { from = Math.max(0, from - PAGE); fill(); });
byId("next").addEventListener("click", () => { from += PAGE; fill(); });

// ---- begin -----------------------------------------------------------------------------------
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  repaint();
});
let begun = false;
new ResizeObserver(() => {
  wide = stage.clientWidth;
  high = stage.clientHeight;
  if (!begun) { begun = true; fit(); }
  redraw();
}).observe(stage);
readColours();
relist();
show();
