/**
 * Compares the page's engine with the command: the same plans give the same JSON and the same exit code. Both starts are
 * compared, from the snapshot and without. `node build/equality.mjs FILE`, after a build; FILE comes from
 * `python -m benchmarks.page_plans`.
 */
import { readFileSync } from "node:fs";
import path from "node:path";
import { gunzipSync } from "node:zlib";
import { command, source, startPlain, startSnapshot } from "./node.mjs";
import { MADE, PUBLIC } from "./paths.mjs";

/** The bytes of a product of the last build. */
export function product(name) {
  const products = JSON.parse(readFileSync(path.join(MADE, "products.json"), "utf8"));
  return gunzipSync(readFileSync(path.join(PUBLIC, products[name].path)));
}

/** An engine of the last build, started one way or the other, with all its files. */
export async function started(way) {
  const from = source({ engine: product("engine"), library: product("library") });
  const engine = way === "plain" ? await startPlain(from) : await startSnapshot(from, Promise.resolve(product("snapshot")));
  await engine.files();
  return engine;
}

/** What differs, as lines; empty where all is equal. */
export function differences(cases, engine) {
  const found = [];
  for (const each of cases) {
    const got = command(engine, each.words, each.files);
    for (const part of ["code", "stdout", "stderr"]) {
      if (got[part] !== each[part]) found.push(`${each.name}: ${part}: ${unlike(String(each[part]), String(got[part]))}`);
    }
  }
  return found;
}

/** Where two texts part, with what follows in each. */
function unlike(wanted, got) {
  let at = 0;
  while (at < wanted.length && wanted[at] === got[at]) at += 1;
  const from = Math.max(0, at - 60);
  return `${JSON.stringify(wanted.slice(from, at + 100))} is ${JSON.stringify(got.slice(from, at + 100))}`;
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const cases = JSON.parse(readFileSync(process.argv[2], "utf8"));
  let wrong = 0;
  for (const way of ["snapshot", "plain"]) {
    const begun = Date.now();
    const found = differences(cases, await started(way));
    wrong += found.length;
    for (const line of found.slice(0, 20)) console.error(`${way}: ${line}`);
    console.log(`${way}: ${cases.length} plans, ${found.length} differences, ${((Date.now() - begun) / 1000).toFixed(1)} s`);
  }
  process.exitCode = wrong === 0 ? 0 : 1;
}
