// Elements, tables and curves. Text from elsewhere becomes text nodes and attributes of text alone,
// never markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
// Control characters, those that turn the direction of the text around them, halves of a pair.
const UNSAFE = /[\p{Surrogate}\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu;

const byId = (id) => document.getElementById(id);
const clean = (text) => String(text ?? "").replace(UNSAFE, "\ufffd");
const shorten = (text, most) => (clean(text).length > most ? clean(text).slice(0, most - 1) + "…" : clean(text));

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = clean(text);
  if (className) made.className = className;
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// -- values ---------------------------------------------------------------------------------------

const percent = (part) => `${Math.round(part * 100)} %`;
const cores = (value) => (value == null ? "–" : String(Math.round(value * 10) / 10));

function size(bytes) {
  if (bytes == null) return "–";
  const units = ["B", "K", "M", "G", "T", "P"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) [bytes, at] = [bytes / 1024, at + 1];
  return `${bytes < 10 && at ? Math.round(bytes * 10) / 10 : Math.round(bytes)}${units[at]}`;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return h ? `${d}d ${h}h` : `${d}d`;
  if (h) return m ? `${h}h ${m}m` : `${h}h`;
  return m ? (s ? `${m}m ${s}s` : `${m}m`) : `${s}s`;
}

function moment(seconds) {
  if (seconds == null) return "–";
  const when = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const clock = `${two(when.getHours())}:${two(when.getMinutes())}`;
  const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  return when.toDateString() === new Date().toDateString() ? clock : `${day} ${clock}`;
}

// A reply in which the daemon's times, such as 2026-11-23 14:05:00 UTC, are those of this zone.
function read(text) {
  return JSON.parse(text.replace(/\b(\d{4}-\d\d-\d\d) (\d\d:\d\d(:\d\d)?) UTC\b/g, (found, day, clock) => {
    const at = Date.parse(`${day}T${clock}Z`);
    return Number.isNaN(at) ? found : moment(at / 1000);
  }));
}

// The resources of an object that has an amount of each, without those of which it has none.
function amounts(object) {
  return Object.entries(object).filter(([, amount]) => typeof amount === "number" && amount);
}

// How people see a resource: its title, and its amounts.
function resource(name) {
  if (name === "cores") return ["Cores", cores];
  const isOfDisks = name === "read" || name === "write";
  const title = isOfDisks ? `Disk ${name}` : name[0].toUpperCase() + name.slice(1);
  return [title, (amount) => size(amount) + (isOfDisks ? "/s" : "")];
}

function demand(amount) {
  const told = amounts(amount).filter(([name]) => name !== "cores_max").map(([name, each]) => {
    const [title, show] = resource(name);
    return `${show(each)} ${title.toLowerCase()}`;
  });
  const gres = Object.entries(amount.gres ?? {}).filter(([, count]) => count);
  return [...told, ...gres.map(([name, count]) => `${count} ${name}`)].join(", ");
}

// -- tables ---------------------------------------------------------------------------------------

// Fill a table: `columns` are [heading, class, value of a row], where a value is a text or
// {text, href, className}. Rows keep their elements by `key`, so that the focus stays where it is.
function fillTable(table, columns, rows, key) {
  const heads = columns.map(([heading]) => heading).join("\n");
  if (table.dataset.heads !== heads) {
    table.dataset.heads = heads;
    table.deleteTHead();
    table.tBodies[0]?.remove();
  }
  if (!table.tHead) {
    table.setAttribute("role", "table");
    const line = table.createTHead().insertRow();
    line.setAttribute("role", "row");
    for (const [heading, className] of columns) {
      const cell = element("th", heading, className);
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      line.append(cell);
    }
    table.createTBody();
  }
  const body = table.tBodies[0];
  const before = new Map([...body.rows].map((line) => [line.dataset.key, line]));
  rows.forEach((row, at) => {
    const name = String(key(row));
    let line = before.get(name);
    before.delete(name);
    if (!line) {
      line = document.createElement("tr");
      line.dataset.key = name;
      line.setAttribute("role", "row");
      for (const [heading, className] of columns) {
        const cell = line.insertCell();
        cell.className = className;
        cell.dataset.label = heading;
        cell.setAttribute("role", "cell");
      }
    }
    columns.forEach(([, className, value], index) => fillCell(line.cells[index], className, value(row)));
    if (body.rows[at] !== line) body.insertBefore(line, body.rows[at] ?? null);
  });
  for (const line of before.values()) line.remove();
  table.hidden = rows.length === 0;
}

// What is so short stays on one line.
const WHOLE = 40;

function fillCell(cell, className, value) {
  const { text, href, mark } = typeof value === "object" ? value : { text: value };
  const kinds = [className, mark, clean(text).length <= WHOLE && "whole"].filter(Boolean).join(" ");
  if (cell.className !== kinds) cell.className = kinds;
  if (!href) return setText(cell, clean(text));
  let link = cell.firstElementChild;
  if (!link) cell.append((link = document.createElement("a")));
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  setText(link, clean(text));
}

function fillList(list, pairs) {
  list.replaceChildren(
    ...pairs.filter(([, text]) => text != null && text !== "").flatMap(([name, text]) => [element("dt", name), element("dd", text)])
  );
}

// -- curves ---------------------------------------------------------------------------------------

// A path through the values that are known; a gap where one is null.
function pathOf(at, values, most) {
  const [begin, end] = [at[0], at[at.length - 1]];
  const width = Math.max(end - begin, 1e-9);
  let path = "";
  let isIn = false;
  values.forEach((value, index) => {
    if (value == null) return (isIn = false);
    const x = (((at[index] - begin) / width) * 100).toFixed(2);
    const y = (39 - (Math.min(value, most) / most) * 38).toFixed(2);
    path += `${isIn ? "L" : "M"}${x} ${y}`;
    isIn = true;
  });
  return path;
}

// A figure with lines [[class, values]], kept by `key` in `parent`.
function figure(parent, key, title, told, at, lines, most) {
  let made = [...parent.children].find((each) => each.dataset.key === key);
  if (!made) {
    made = element("figure");
    made.dataset.key = key;
    const caption = element("figcaption");
    caption.append(element("b"), element("span"));
    const picture = svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const [className] of lines) picture.append(svg("path", { class: className }));
    made.append(caption, picture);
    parent.append(made);
  }
  setText(made.querySelector("b"), clean(title));
  setText(made.querySelector("span"), clean(told));
  lines.forEach(([, values], index) => made.querySelectorAll("path")[index].setAttribute("d", pathOf(at, values, most)));
  return made;
}
