/** Fails the build where a visit would load more than it may. All figures are bytes as they travel, with gzip. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { gzipSync } from "node:zlib";
import { DIST } from "./paths.mjs";

const KB = 1_000;
const MB = 1_000_000;

/** The most that each product may have. */
const BUDGET = {
  "index.html": 25 * KB,
  "shell (scripts of the first view)": 45 * KB,
  "style sheet": 15 * KB,
  "painted page (index.html, shell, style)": 100 * KB,
  "catalog of names": 20 * KB,
  "combobox": 22 * KB,
  "editor": 140 * KB, // with search and completion, 134 kB
  "worker": 10 * KB,
  "before the verdict, with snapshot": 11 * MB,
  "before the verdict, without snapshot": 8.2 * MB,
  "everything": 15 * MB,
};

/** Compressed bytes of a file of the built page. */
export function travels(name) {
  const file = path.join(DIST, name);
  return name.endsWith(".gz") ? statSync(file).size : gzipSync(readFileSync(file), { level: 9 }).length;
}

/** Bytes of every product, by the name of its budget. `chunks` is the manifest that vite writes. */
export function measured(products, chunks) {
  const all = readdirSync(DIST, { recursive: true }).filter((name) => statSync(path.join(DIST, name)).isFile());
  const sum = (names) => [...new Set(names)].reduce((total, name) => total + travels(name), 0);
  const entry = chunks["index.html"];
  const shell = withImports(chunks, "index.html");
  const lazy = (part) => {
    const found = Object.keys(chunks).find((key) => key.includes(part));
    return found ? withImports(chunks, found).filter((name) => !shell.includes(name)) : [];
  };
  const worker = all.filter((name) => /assets\/worker-.*\.js$/u.test(name));
  const painted = ["index.html", ...shell, ...(entry.css ?? [])];
  const engine = (...names) => names.reduce((total, name) => total + products[name].bytes, 0);
  const view = sum([...painted, ...worker]);
  return {
    "index.html": travels("index.html"),
    "shell (scripts of the first view)": sum(shell),
    "style sheet": sum(entry.css ?? []),
    "painted page (index.html, shell, style)": sum(painted),
    "catalog of names": products.catalog.bytes,
    "combobox": sum(lazy("form/model.tsx")),
    "editor": sum(lazy("editor/editor.ts")),
    "worker": sum(worker),
    "before the verdict, with snapshot": view + engine("loader", "glue", "runtime", "snapshot"),
    "before the verdict, without snapshot": view + engine("loader", "glue", "runtime", "library", "engine"),
    "everything": sum(all),
  };
}

function withImports(chunks, key, seen = new Set()) {
  const chunk = chunks[key];
  if (!chunk || seen.has(chunk.file)) return [...seen];
  seen.add(chunk.file);
  for (const each of chunk.imports ?? []) withImports(chunks, each, seen);
  return [...seen];
}

/** Print the table; an error where a product is missing or too large. */
export function holdBudget(found) {
  const wrong = [];
  for (const [name, most] of Object.entries(BUDGET)) {
    const bytes = found[name];
    const over = bytes > most;
    console.log(`${over ? "!!" : "  "} ${name.padEnd(42)} ${kb(bytes)} of ${kb(most)}`);
    if (over) wrong.push(name);
    if (bytes === 0) wrong.push(`${name} (not found)`);
  }
  if (wrong.length > 0) throw new Error(`beyond the budget: ${wrong.join(", ")}`);
}

const kb = (bytes) => `${(bytes / KB).toFixed(1).padStart(9)} kB`;
