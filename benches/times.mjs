// How figures of several rounds are printed.

const sorted = (list) => [...list].sort((a, b) => a - b);
export const median = (list) => sorted(list)[Math.floor(list.length / 2)];
export const print = (name, list, unit = "ms") => console.log(`${name}: ${median(list).toFixed(0)} ${unit} (${Math.min(...list).toFixed(0)} to ${Math.max(...list).toFixed(0)}, ${list.length} times)`);
