// The search: it counts what is typed, leads from hit to hit, and filters on request.

/** The timer of what was typed and is not yet looked for; 0 = none. */
let typed = 0;
/** The hit that is shown, of the frames of the flame graph or of the rows of a table; -1 = none yet. */
let hitAt = -1;

/** Looks for a text. The first letter is a step of its own; those behind it refine that. */
function searchFor(text) {
  lookNow();
  ownExpressions.add(text);
  typed = setTimeout(() => {
    typed = 0;
    go({ find: text }, { refine: Boolean(text && state.find) });
  }, 60);
}

/** What was typed is looked for now, or not at all. */
function lookNow() {
  clearTimeout(typed);
  typed = 0;
}

/** Selects the stacks that have what is looked for. */
function filterFound() {
  lookNow();
  const text = $("search").value;
  ownExpressions.add(text);
  go({ search: text, find: "", zoom: [] });
}

/** What the search finds. */
function showFound() {
  const box = $("found");
  box.hidden = !state.find || !answer.found;
  if (box.hidden) return;
  const { functions, folded, weight } = answer.found;
  const note = folded ? `, ${folded === functions ? "" : `${count(folded)} of them `}folded by My code` : "";
  const text = functions ? `${counted(functions, "function")}${note}, ${amountText(weight)} (${percent(weight, answer.weight)})` : "nothing found";
  const at = hitAt >= 0 ? ` · hit ${hitAt + 1} of ${count(hits().length)}` : "";
  const button = (text, keys, act) => el("button", { type: "button", class: "plain", onclick: act }, text, " ", el("kbd", {}, keys));
  box.dataset.functions = functions;
  box.dataset.weight = weight;
  box.replaceChildren(el("span", {}, text + at), ...(functions ? [button("next", "Enter", () => nextHit(1)), button("filter", "Ctrl Enter", filterFound)] : []));
}

/** The hits of the view: frames of the flame graph, paths of the call tree, or rows of a table. */
function hits() {
  if (!answer?.matches) return [];
  if (state.view === "flame" || state.view === "tree") return hitsOf(answer.flame.frames, answer.matches);
  return [...document.querySelectorAll("#view tbody tr[data-function]")].filter(({ dataset }) => answer.matches[dataset.function]);
}

/** Shows the next hit, or the one before. Views without functions lead to the flame graph. */
function nextHit(step) {
  if (!state.find || !answer.matches) return;
  if (!["flame", "tree", "functions", "around"].includes(state.view)) {
    go({ view: "flame" });
    return;
  }
  const all = hits();
  if (!all.length) return;
  hitAt = hitAt < 0 ? (step > 0 ? 0 : all.length - 1) : (hitAt + step + all.length) % all.length;
  const hit = all[hitAt];
  if (state.view === "flame") {
    flame.hit = hit;
    showCursor(hit);
  } else if (state.view === "tree") openTreeTo(pathOf(hit).join("."));
  else {
    hit.scrollIntoView({ block: "center" });
    document.querySelector("tr.hit")?.classList.remove("hit");
    hit.classList.add("hit");
  }
  showFound();
  say(`hit ${hitAt + 1} of ${all.length}`);
}

/** Keys in the field of the search. */
function searchKeys(event) {
  const { target, key } = event;
  if (key === "Escape") {
    target.value = "";
    searchFor("");
    target.blur();
  } else if (key === "Enter" && (event.ctrlKey || event.metaKey)) filterFound();
  else if (key === "Enter" && target.value !== state.find) {
    // Typed a moment ago: the answer leads to the first hit.
    lookNow();
    ownExpressions.add(target.value);
    go({ find: target.value }, { refine: Boolean(state.find) });
  } else if (key === "Enter") nextHit(event.shiftKey ? -1 : 1);
  else return;
  event.preventDefault();
}

/** Runs an expression that a link asks for. */
function runSearch(search) {
  ownExpressions.add(search);
  update({ again: true });
}
