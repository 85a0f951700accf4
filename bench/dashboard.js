// Draws the panels of a dashboard's JSON: rows, stat, bargauge and timeseries, as pictures.py says.
const {dashboard, series, start, end} = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#3e7cb1", "#d97925", "#4c9f70", "#a14a76", "#7d6bb0", "#8a6d3b", "#2f9e9e"];
const UNITS = {h: " h", s: " s", bytes: " B", ops: " /s"};

function element(name, kind, text = "") {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  return made;
}

function shown(value, unit) {
  if (unit === "percentunit") return `${(100 * value).toFixed(1)} %`;
  const digits = Math.abs(value) >= 1000 ? value.toLocaleString("en", {maximumFractionDigits: 0})
    : String(Number(value.toPrecision(4)));
  return digits + (UNITS[unit] ?? "");
}

function named(one) {
  return one.legend.replace(/{{(\w+)}}/g, (_, label) => one.labels[label] ?? "");
}

function last(one) {
  return one.values[one.values.length - 1][1];
}

const LOOKS = {
  stat(body, found, unit) {
    const all = element("div", "stats");
    for (const one of found) {
      const made = element("div", "stat");
      made.append(element("b", "", shown(last(one), unit)), named(one));
      all.append(made);
    }
    body.append(all);
  },
  bargauge(body, found, unit) {
    const most = Math.max(...found.map((one) => Math.abs(last(one)))) || 1;
    found.sort((one, other) => last(other) - last(one));
    for (const one of found) {
      const made = element("div", "bar"), bar = element("i", "");
      bar.style.width = `${100 * Math.abs(last(one)) / most}%`;
      if (last(one) < 0) bar.style.background = COLOURS[1];
      const box = element("div", "");
      box.append(bar);
      const value = element("span", "", shown(last(one), unit));
      made.append(element("span", "", named(one)), box, value);
      body.append(made);
    }
  },
  timeseries(body, found, unit) {
    const values = found.flatMap((one) => one.values.map(([, value]) => value));
    const low = Math.min(0, ...values), high = Math.max(...values, low + 1e-9);
    const space = "http://www.w3.org/2000/svg";
    const picture = document.createElementNS(space, "svg");
    picture.setAttribute("viewBox", "0 0 1000 1000");
    picture.setAttribute("preserveAspectRatio", "none");
    const legend = element("div", "legend", `${shown(low, unit)} to ${shown(high, unit)}`);
    found.forEach((one, number) => {
      const line = document.createElementNS(space, "polyline");
      line.setAttribute("points", one.values.map(([time, value]) =>
        `${1000 * (time - start) / (end - start)},${990 - 980 * (value - low) / (high - low)}`)
        .join(" "));
      const colour = COLOURS[number % COLOURS.length];
      line.setAttribute("fill", "none");
      line.setAttribute("stroke", colour);
      line.setAttribute("stroke-width", "2");
      line.setAttribute("vector-effect", "non-scaling-stroke");
      picture.append(line);
      const name = element("span", "", `■ ${named(one)}`);
      name.style.color = colour;
      legend.append(name);
    });
    body.append(picture, legend);
  },
};

document.querySelector("h1").textContent = dashboard.title;
const grid = document.getElementById("grid");
for (const panel of dashboard.panels) {
  const {x, y, w, h} = panel.gridPos;
  const made = element("div", panel.type === "row" ? "row" : "panel");
  made.style.gridArea = `${y + 1} / ${x + 1} / span ${h} / span ${w}`;
  if (panel.type === "row") {
    made.textContent = panel.title;
  } else {
    const {unit, noValue} = panel.fieldConfig.defaults;
    const found = (series[panel.id] ?? []).filter((one) => one.values.length);
    const body = element("div", "body");
    made.dataset.series = found.length;
    if (found.length) LOOKS[panel.type](body, found, unit);
    else body.append(element("div", "empty", noValue));
    made.append(element("div", "title", panel.title), body);
  }
  grid.append(made);
}
