// Call trees that are opened node by node: a grid of rows with levels (ARIA's treegrid), moved in by keys.

/** By tree: which paths are open, which row has the cursor, and whether it is yet to be opened for the first time. */
const trees = new Map();

/** Rows of a tree in the page. */
const MOST_TREE_ROWS = 1500;

function treeOf(key) {
  let tree = trees.get(key);
  if (!tree) trees.set(key, (tree = { key, open: new Set(), along: "", cursor: "" }));
  return tree;
}

/** The trees of a view: what the worker makes, and under which key its state is kept. */
function treesOf(s) {
  const list = s.view === "tree" ? [{ kind: s.inverted ? "callers" : "callees", fn: -1 }] : s.view === "around" && s.fn >= 0 ? ["callersOf", "calleesOf"].map((kind) => ({ kind, fn: s.fn })) : [];
  return list.map((tree) => ({ ...tree, key: `${s.process} ${tree.kind} ${tree.fn}` }));
}

/** The question to the worker. */
const wantedTrees = (s) => treesOf(s).map(({ key, ...tree }) => ({ ...tree, open: [...treeOf(key).open], along: treeOf(key).along }));

/** Keeps which paths are open now. */
function keepTrees(s, answered) {
  treesOf(s).forEach(({ key }, i) => Object.assign(treeOf(key), { open: new Set(answered[i].opened), along: null, rows: answered[i].rows }));
}

/** Opens or closes a path. */
function setOpen(tree, path, open) {
  if (open) tree.open.add(path);
  else tree.open.delete(path);
  update({ again: true });
}

/** Opens the call tree as far as a path, and puts the cursor there. */
function openTreeTo(path) {
  const [{ key }] = treesOf(state), tree = treeOf(key), functions = path.split(".");
  for (let length = 1; length < functions.length; length++) tree.open.add(functions.slice(0, length).join("."));
  Object.assign(tree, { cursor: path, found: true });
  update({ again: true });
}

/** The functions of a row's stack, innermost first. */
function stackOfRow({ key }, path) {
  const functions = path.split(".").map(Number);
  return key.includes("callers") ? functions : functions.reverse();
}

/** The table of a tree. */
function treeTable(key, title) {
  const up = key.includes("callers");
  const tree = treeOf(key), { rows } = tree;
  const body = el("tbody", {});
  const table = el("table", { class: "wide tree", role: "treegrid", "aria-label": title, "data-tree": key },
    el("thead", {}, el("tr", { role: "row" }, el("th", { scope: "col" }, title), amountHead(up ? "Through it" : "With callees"), amountHead(up ? "Without caller" : "Self"), el("th", { scope: "col", class: "module" }, "Module"))), body);
  if (!rows.path.includes(tree.cursor)) tree.cursor = rows.path[0] ?? "";
  body.append(...rows.path.slice(0, MOST_TREE_ROWS).map((_, i) => treeRow(tree, i)));
  if (rows.path.length > MOST_TREE_ROWS) body.append(el("tr", {}, el("td", { colSpan: 8, class: "soft" }, `${count(rows.path.length - MOST_TREE_ROWS)} more rows: close some.`)));
  table.addEventListener("keydown", (event) => treeKeys(tree, table, event));
  table.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-path]");
    if (!row) return;
    moveTo(tree, table, row);
    if (event.target.closest(".twisty") || event.detail === 2) toggleRow(tree, row);
  });
  table.addEventListener("contextmenu", (event) => {
    const row = event.target.closest("tr[data-function]");
    if (!row || Number(row.dataset.function) < 0) return;
    event.preventDefault();
    openMenuOf(Number(row.dataset.function), stackOfRow(tree, row.dataset.path), event.clientX, event.clientY);
  });
  return table;
}

function treeRow({ rows, cursor, found }, i) {
  const f = rows.fn[i], path = rows.path[i], below = rows.below[i];
  const mark = el("i", { class: "swatch", style: { background: f < 0 ? "transparent" : chosenColour(f, 0) } });
  const twisty = el("span", { class: "twisty", "aria-hidden": "true" }, below && f >= 0 ? (rows.open[i] ? "▾" : "▸") : "");
  const name = f < 0 ? `${counted(below, "function")} more` : nameOf(f);
  const matched = f >= 0 && answer.matches?.[f];
  const cell = el("td", { class: "function", role: "gridcell", title: f < 0 ? "" : fullName(f) }, twisty, mark, el("span", { class: `name${matched ? " matched" : ""}` }, name), rows.unproved[i] > 0 ? el("span", { class: "soft", title: `${percent(rows.unproved[i], rows.weight[i])} of it is not proved` }, " ≈") : "");
  cell.style.paddingLeft = `${6 + 13 * Math.min(rows.depth[i], 60)}px`;
  const row = el("tr", { role: "row", "aria-level": rows.depth[i] + 1, "aria-posinset": rows.place[i], "aria-setsize": rows.of[i], tabIndex: path === cursor ? 0 : -1, class: path === cursor && found ? "hit" : "", "data-path": path, "data-function": f }, cell, ...amountCells(rows.weight[i]), ...amountCells(rows.self[i]), el("td", { class: "module soft", role: "gridcell" }, moduleOf(f)));
  if (below && f >= 0) row.setAttribute("aria-expanded", String(rows.open[i]));
  return row;
}

function moveTo(tree, table, row) {
  if (!row?.dataset?.path) return;
  table.querySelector('tr[tabindex="0"]')?.setAttribute("tabindex", "-1");
  table.querySelector("tr.hit")?.classList.remove("hit");
  row.tabIndex = 0;
  tree.cursor = row.dataset.path;
  tree.found = false;
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function toggleRow(tree, row) {
  const open = row.getAttribute("aria-expanded");
  if (open !== null) setOpen(tree, row.dataset.path, open === "false");
}

/** Keys in a tree: ARIA's for a treegrid, and those of a function. */
function treeKeys(tree, table, event) {
  const row = event.target.closest("tr[data-path]");
  if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = [...table.querySelectorAll("tr[data-path]")], at = all.indexOf(row);
  const { path, function: number } = row.dataset, f = Number(number), open = row.getAttribute("aria-expanded");
  const page = Math.max(1, Math.floor(innerHeight / 40));
  const to = (i) => moveTo(tree, table, all[Math.max(0, Math.min(all.length - 1, i))]);
  const keys = {
    ArrowDown: () => to(at + 1), ArrowUp: () => to(at - 1), PageDown: () => to(at + page), PageUp: () => to(at - page), Home: () => to(0), End: () => to(all.length - 1),
    ArrowRight: () => (open === "true" ? to(at + 1) : toggleRow(tree, row)),
    ArrowLeft: () => (open === "true" ? toggleRow(tree, row) : moveTo(tree, table, all.find((other) => other.dataset.path === path.replace(/\.?[^.]+$/, "")))),
    " ": () => toggleRow(tree, row),
    "*": () => {
      tree.along = path;
      update({ again: true });
    },
    Enter: () => f >= 0 && go({ fn: f, view: "around" }),
    ...(f >= 0 ? functionKeys(f, stackOfRow(tree, path)) : {}),
  };
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  event.stopPropagation();
  keys[event.key]();
}

/** Shows trees, and puts the focus where it was. */
function showTrees(view, ...parts) {
  const active = document.activeElement?.closest?.("[data-tree]")?.dataset.tree;
  view.replaceChildren(...parts);
  for (const table of view.querySelectorAll("[data-tree]")) {
    const tree = treeOf(table.dataset.tree), row = table.querySelector('tr[tabindex="0"]');
    if (active === tree.key) row?.focus({ preventScroll: true });
    if (tree.found || active === tree.key) row?.scrollIntoView({ block: "nearest" });
  }
}

function treeView(view) {
  const [{ key }] = treesOf(state);
  const { folded } = answer.functions;
  const choose = (inverted, text) => el("button", { type: "button", class: "small", "aria-pressed": String(state.inverted === inverted), onclick: () => go({ inverted, zoom: [] }) }, text);
  showTrees(view,
    el("div", { class: "legend" }, choose(false, "Callees below callers"), choose(true, "Callers below callees"), el("span", { class: "soft" }, `Heaviest first. → opens, ← closes, * opens the heaviest path.${folded > 0 ? ` ${amountText(folded)} (${bothShares(folded)}) is in stacks without code of yours.` : ""}`)),
    treeTable(key, state.inverted ? "Where stacks end, and their callers" : "Callers, and their callees"));
}

function aroundView(view) {
  const { fn: f } = state;
  if (f < 0) {
    view.replaceChildren(el("p", {}, "Choose a function: in a table or a tree, or by its menu in the flame graph (right click)."));
    return;
  }
  const { files, lines, sources, causes } = shown.facts.functions;
  const place = files[f] ? `${shown.facts.files[files[f] - 1]}${lines[f] ? `:${lines[f]}` : ""}` : "";
  const cause = causes[f] ? shown.facts.causes[causes[f] - 1].cause : "";
  const [up, down] = treesOf(state).map(({ key }) => key), { rows } = treeOf(down);
  const weight = rows.weight[0] ?? 0, self = rows.self[0] ?? 0, unproved = rows.unproved[0] ?? 0;
  showTrees(view,
    el("div", { class: "subject", "data-weight": weight, "data-self": self }, el("h2", {}, fullName(f)), el("span", { class: "soft" }, [moduleOf(f), place, `named by: ${sources[f]}`].filter(Boolean).join(" · ")),
      cause ? el("p", { class: "warn" }, cause) : null,
      el("p", {}, `${amountText(weight)} with callees (${bothShares(weight)}), ${amountText(self)} its own (${bothShares(self)}).${unproved > 0 ? ` ${percent(unproved, weight)} of it is not proved.` : ""} Recursion counts once: callers are those of its outermost call.`),
      weight === 0 ? el("p", { class: "warn" }, state.mine && ownerOf(f) !== "own" ? "My code folds it into its caller: m shows it." : "No stack of the selection has it.") : null),
    el("div", { class: "columns" }, el("div", {}, treeTable(up, "Callers")), el("div", {}, treeTable(down, "Callees"))));
}
