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
  made.addEventListener("click", () => { chooseNode(v); locate(chosen.item); });
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
const readBy = new Int32Array(count);
for (const read of data.inputs) for (const u of read) readBy[u] += 1;
const show = () => {
  panel.replaceChildren();
  const k = chosen.kernel, item = scene.items[chosen.item], v = item ? item.node : -1;
  const of = item && v < 0 ? item.group : chosen.group;
  const heading = make("h3");
  heading.tabIndex = -1;
  panel.append(heading);
  if (k < 0 && !item && !of) {
    heading.append("Nothing selected");
    const words = "Select an operation, a group of them, or a kernel in the table: operations, "
      + "bytes, times and text are shown here.";
    panel.append(make("p", words));
    return;
  }
  if (k >= 0) heading.append(swatch(k), `Kernel ${k}`);
  else heading.append(v >= 0 ? data.names[v] : pathOf(of));
  if (v >= 0) showNode(v, k);
  else if (of) showGroup(of);
  if (k >= 0) showKernel(k);
};
const button = (words, act, kind = "") => {
  const made = make("button", words);
  made.type = "button";
  if (kind) made.className = kind;
  made.addEventListener("click", act);
  return made;
};
const showGroup = (of) => {
  const all = membersOf(of), kernels = new Map(), left = new Map();
  for (const v of all) {
    const k = data.kernel[v], reason = text(data.reasons, v);
    if (k >= 0) kernels.set(k, (kernels.get(k) || 0) + 1);
    else if (reason) left.set(reason, (left.get(reason) || 0) + 1);
  }
  const inside = [...kernels.values()].reduce((sum, several) => sum + several, 0);
  const english = (number) => number.toLocaleString("en");
  panel.append(button(of.open ? "Close" : "Open", () => (of.open ? close(of) : open(of)), "fold"),
    facts([["operations", english(all.length)], ["in kernels", english(inside)],
      ...[...left].map(([reason, several]) => [`left, ${reason}`, english(several)])]));
  if (of.kernel >= 0) return;
  const list = make("ul");
  const most = [...kernels].sort((one, other) => other[1] - one[1]);
  for (const [k, several] of most.slice(0, LISTED)) {
    const one = button("", () => chooseKernel(k), "kernel");
    one.append(swatch(k), `K${k}`);
    list.append(make("li", "", one, ` ${english(several)} operations of it`));
  }
  panel.append(list);
};
const crumbs = (v) => {  // the groups around an operation: each can be closed
  const line = make("p", "in ");
  for (let of = scene.items[scene.itemOf[v]].group; of && of.parent; of = of.parent) {
    line.append(button(`close ${of.name}`, () => close(of), "crumb"), " ");
  }
  return line.children.length ? line : "";
};
const showNode = (v, k) => {
  const pairs = [["opcode", text(data.ops, v)]];
  if (k >= 0) pairs.unshift(["operation", data.names[v]]);
  if (text(data.written, v)) pairs.push(["in the script", text(data.written, v)]);
  pairs.push(["reads", `${data.inputs[v].length}`], ["read by", `${readBy[v]}`]);
  panel.append(facts(pairs), crumbs(v));
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
const spoken = (i) => {
  const item = scene.items[i], v = item.node;
  if (v < 0) {
    const kernels = item.group.kernel >= 0 ? "" : `, ${item.kernels.length} kernels`;
    return `${pathOf(item.group)}, ${item.members.length} operations${kernels}, closed`;
  }
  const k = data.kernel[v], reason = text(data.reasons, v);
  const where = k >= 0 ? `kernel ${k}` : reason ? `left as it was, ${reason}` : "no work";
  return `${data.names[v]}, ${text(data.ops, v)}, ${where}`;
};
const choose = (i, move = true) => {
  chosen.item = i;
  chosen.group = null;
  chosen.kernel = i >= 0 ? scene.items[i].kernel : -1;
  if (i >= 0) {
    said(spoken(i));
    if (move && !visible(i)) locate(i);
  }
  chosenRows();
  show();
  repaint();
};
const chooseNode = (v) => {  // opens what hides it
  let hidden = scene.items[scene.itemOf[v]];
  while (hidden.node < 0) {
    hidden.group.open = true;
    arrange();
    hidden = scene.items[scene.itemOf[v]];
  }
  choose(scene.itemOf[v], false);
};
const frame = (items) => {  // all of them in sight
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const i of items) {
    left = Math.min(left, scene.x[i]);
    top = Math.min(top, scene.y[i]);
    right = Math.max(right, scene.x[i] + WIDTH);
    bottom = Math.max(bottom, scene.y[i] + HEIGHT);
  }
  const w = right - left, h = bottom - top;
  const scale = Math.max(least(), Math.min(1, (wide - 80) / w, (high - 110) / h));
  glide((wide - w * scale) / 2 - left * scale, (high - 30 - h * scale) / 2 - top * scale, scale);
};
const itemsOf = (nodes) => new Set(nodes.map((v) => scene.itemOf[v]));
const chooseKernel = (k) => {
  chosen.kernel = k;
  chosen.item = -1;
  chosen.group = null;
  chosenRows();
  show();
  repaint();
  said(`kernel ${k}, ${members[k].length} operations`);
  if (members[k].length) frame(itemsOf(members[k]));
};
const open = (of) => {
  of.open = true;
  arrange();
  choose(-1);
  chosen.group = of;
  show();
  said(`${pathOf(of)}, open`);
  frame(itemsOf(membersOf(of)));
};
const close = (of) => {
  const [v] = membersOf(of);
  of.open = false;
  everyGroup(of, (inner) => { inner.open = false; });
  arrange();
  choose(scene.itemOf[v]);
};
const regroup = (act) => {
  act();
  arrange();
  choose(-1);
  fit();
};
const chosenRows = () => {
  for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
  const button = document.querySelector(`button.kernel[data-kernel="${chosen.kernel}"]`);
  if (button) button.closest("tr").classList.add("chosen");
};

// ---- keys and pointers -----------------------------------------------------------------------
const first = () => (matches.length ? scene.itemOf[matches[0]] : (scene.rows[0] || [])[0]);
const beside = (i, by) => {
  const row = scene.rows[rowOf[i]], next = row[placeIn[i] + by];
  if (next !== undefined) return next;
  const other = scene.rows[rowOf[i] + by];
  return other ? other[by > 0 ? 0 : other.length - 1] : i;
};
const KEYS = {
  ArrowRight: (i) => beside(i, 1), ArrowLeft: (i) => beside(i, -1),
  ArrowUp: (i) => (scene.inputs[i].length ? scene.inputs[i][0] : i),
  ArrowDown: (i) => (scene.readers[i].length ? scene.readers[i][0] : i),
  Home: () => scene.rows[0][0],
  End: () => scene.rows[scene.rows.length - 1].at(-1),
};
const enter = () => {
  const item = scene.items[chosen.item];
  if (item && item.node < 0) {
    open(item.group);
    choose(scene.itemOf[item.members[0]]);
  } else panel.querySelector("h3").focus();
};
const leave = () => {
  const { group } = scene.items[chosen.item], outer = group.open ? group : group.parent;
  if (outer && outer.parent) close(outer);
};
stage.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !count) return;
  const { key } = event;
  if (KEYS[key]) choose(chosen.item < 0 ? first() : KEYS[key](chosen.item));
  else if (key === "+" || key === "=") zoom(1.25);
  else if (key === "-") zoom(0.8);
  else if (key === "0") fit();
  else if (key === "Enter" && (chosen.item >= 0 || chosen.kernel >= 0)) enter();
  else if (key === "Backspace" && chosen.item >= 0) leave();
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (panel.contains(document.activeElement)) stage.focus();
  else if (chosen.item >= 0 || chosen.kernel >= 0 || chosen.group) {
    choose(-1);
    said("nothing selected");
  }
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
  if (hit >= 0 && scene.items[hit].node < 0) open(scene.items[hit].group);
  else choose(hit, false);
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
byId("open").addEventListener("click", () => regroup(() => {
  everyGroup(root, (one) => { one.open = true; });
}));
byId("close").addEventListener("click", () => regroup(() => {
  everyGroup(root, (one) => { one.open = false; });
}));
byId("groups").value = byScopes ? "scopes" : "kernels";
byId("groups").addEventListener("change", (event) => regroup(() => {
  const byKernel = event.target.value === "kernels";
  root = grown(byKernel);
  if (!byKernel) openSome(root);
}));
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
    chooseNode(matches[turn]);
    locate(chosen.item);
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
