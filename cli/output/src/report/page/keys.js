// The keyboard, and the list of its keys.

const KEYS = [
  ["/", "search; Enter keeps it, Escape clears it"],
  ["1 – 5", "flame graph, functions, callers & callees, waits, quality"],
  ["i", "callers instead of callees in the flame graph, and back"],
  ["m", "fold code of the system and of runtimes into your code, or show it"],
  ["o", "fold recursion: show a cycle of calls that follows itself once, or each time"],
  ["w", "next weight: CPU time, time, waits, samples"],
  ["r", "select the whole trace again"],
  ["Backspace", "back, as the browser's button"],
  ["t", "light or dark"],
  ["?", "this list"],
  ["In the flame graph", ""],
  ["← → ↑ ↓", "move between frames"],
  ["Enter", "zoom in"],
  ["Escape", "zoom out"],
  ["f h c y", "focus, hide, callers and callees, copy the stack of the frame"],
  ["Menu, Shift F10", "menu of the frame; with the mouse: right click"],
  ["In the timeline", ""],
  ["drag", "select a time; a click selects all of it"],
  ["← → + −", "move the selected time, make it shorter or longer"],
  ["click a thread", "select it alone; with Ctrl: add it"],
];

function showKeys() {
  const dialog = $("keys");
  const rows = KEYS.map(([key, text]) => (text ? el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, text)) : el("tr", {}, el("th", { colSpan: 2 }, key))));
  dialog.replaceChildren(el("h2", {}, "Keys"), el("table", {}, el("tbody", {}, ...rows)), el("form", { method: "dialog" }, el("button", { type: "submit" }, "Close")));
  dialog.showModal();
}

/** Keys that act on a frame of the flame graph. */
function frameKeys(event) {
  const { cursor } = flame;
  const f = cursor >= 0 ? flame.frames.fn[cursor] : -1;
  const keys = {
    ArrowUp: () => moveCursor("ArrowUp"),
    ArrowDown: () => moveCursor("ArrowDown"),
    ArrowLeft: () => moveCursor("ArrowLeft"),
    ArrowRight: () => moveCursor("ArrowRight"),
    Enter: () => clickFrame(cursor),
    Escape: () => go({ zoom: state.zoom.slice(0, -1) }),
  };
  if (f >= 0) {
    Object.assign(keys, {
      f: () => go({ focus: f, zoom: [] }),
      h: () => go({ hidden: [...new Set([...state.hidden, f])].sort((a, b) => a - b), zoom: [] }),
      c: () => go({ fn: f, view: "around" }),
      y: () => copy((state.inverted ? pathOf(cursor) : pathOf(cursor).reverse()).map((g) => `${moduleOf(g)}!${nameOf(g)}`).join("\n")),
      ContextMenu: () => menuAtCursor(),
      F10: () => event.shiftKey && menuAtCursor(),
    });
  }
  return keys[event.key];
}

function menuAtCursor() {
  const { left, top } = flame.canvas.getBoundingClientRect();
  const { x, depth } = flame.frames;
  const { cursor } = flame;
  openMenu(cursor, left + (x[cursor] / flame.all) * flame.canvas.clientWidth + 12, top + (depth[cursor] + 1) * ROW - flame.scroller.scrollTop);
}

const PAGE_KEYS = {
  "/": () => $("search").select(),
  i: () => toggleInverted(),
  m: () => go({ mine: !state.mine, zoom: [] }),
  o: () => go({ once: !state.once, zoom: [] }),
  w: () => {
    const all = Object.keys(WEIGHTS);
    go({ weight: all[(all.indexOf(shown.weight) + 1) % all.length] });
  },
  r: () => reset(),
  t: () => toggleTheme(),
  "?": () => showKeys(),
  Backspace: () => history.back(),
  Escape: () => state.zoom.length && go({ zoom: state.zoom.slice(0, -1) }),
};

const toggleInverted = () => go({ inverted: !state.inverted, zoom: [], view: "flame" });

function onKey(event) {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open || !answer) return;
  if (target.id === "search") {
    if (key === "Escape") {
      target.value = "";
      searchFor("");
      target.blur();
    } else if (key === "Enter") target.blur();
    return;
  }
  if (target.tagName === "SELECT" || target.tagName === "INPUT") return;
  let act = target.id === "flame" ? frameKeys(event) : undefined;
  if (target.role === "tab" && (key === "ArrowLeft" || key === "ArrowRight")) {
    const all = Object.keys(VIEWS);
    const at = all.indexOf(state.view) + (key === "ArrowRight" ? 1 : -1);
    act = () => go({ view: all[(at + all.length) % all.length] });
  }
  if (/^[1-5]$/.test(key)) act = () => go({ view: Object.keys(VIEWS)[Number(key) - 1] });
  act ??= Object.hasOwn(PAGE_KEYS, key) ? PAGE_KEYS[key] : undefined;
  if (!act) return;
  event.preventDefault();
  act();
}
