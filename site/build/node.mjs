/** The engine in node: what makes the snapshot, and what tests and benchmarks ask without a browser. */
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { loadPyodide } from "pyodide";
import createRuntime from "pyodide/pyodide.asm.mjs";
import { isNotYet, startPlain, startSnapshot } from "../.build/js/src/engine/boot.js";
import { MADE, PYODIDE, SITE } from "./paths.mjs";
import { storedZip } from "./zip.mjs";

/** Where node takes the engine from. */
export function source({ engine, library }) {
  const libraryURL = path.join(MADE, "library.zip");
  const emptyURL = path.join(MADE, "empty.zip");
  writeFileSync(libraryURL, library);
  writeFileSync(emptyURL, storedZip([]));
  return {
    loadPyodide,
    createRuntime,
    indexURL: `${PYODIDE}/`,
    packages: JSON.parse(readFileSync(path.join(PYODIDE, "pyodide-lock.json"), "utf8")).info,
    libraryURL,
    emptyURL,
    engine: async () => engine,
    library: async () => library,
    bridge: readFileSync(path.join(SITE, "src", "engine", "bridge.py"), "utf8"),
  };
}

/** All steps of the answer to one request. The files of the engine are waited for where the answer needs them. */
export async function ask(engine, request) {
  for (;;) {
    const steps = engine.begin(JSON.stringify(request));
    const found = [];
    try {
      for (let step = steps.next(); step !== null; step = steps.next()) found.push(JSON.parse(step));
      return found;
    } catch (error) {
      steps.close();
      if (!isNotYet(error)) throw error;
      await engine.files();
    }
  }
}

export { startPlain, startSnapshot };
