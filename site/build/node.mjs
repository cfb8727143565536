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

/** What the command prints and returns inside an engine, in a folder that holds `files` (bytes as base64, by name). */
export function command(engine, words, files = {}) {
  engine.python.runPython(COMMAND);
  const run = engine.python.globals.get("command");
  const [code, stdout, stderr] = JSON.parse(run(JSON.stringify([words, files])));
  run.destroy();
  return { code, stdout, stderr };
}

const COMMAND = `
def command(asked):
    import base64, contextlib, io, json, os, shutil, tempfile
    from memcheck.__main__ import main

    words, files = json.loads(asked)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    before = os.getcwd()
    folder = tempfile.mkdtemp()
    try:
        for name, data in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(base64.b64decode(data))
        os.chdir(folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        os.chdir(before)
        shutil.rmtree(folder)
    return json.dumps([code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))])
`;

export { startPlain, startSnapshot };
