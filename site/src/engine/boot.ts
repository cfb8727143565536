/** Starts Python and memcheck in it; the same in the page's worker and in node, which differ in where bytes come from. */
import type { PyodideAPI, PyodideConfig } from "pyodide";
import { unpack, type FileSystem } from "./pack.ts";

/** Where the engine's files come from. Each is asked for once; all are asked for before the first is waited for. */
export interface Source {
  /** Pyodide's own entry, from the same build as `glue` and the runtime. */
  loadPyodide(options: PyodideConfig): Promise<PyodideAPI>;
  /** The folder, with a slash at its end, below which Pyodide looks for its parts. */
  indexURL: string;
  /** The address of the archive of the standard library, as Pyodide asks for it. */
  stdLibURL: string;
  /** What Pyodide checks of its list of packages before it uses none of them. */
  packages: Record<string, string>;
  /** The bytes of `engine.pack`. */
  engine(): Promise<Uint8Array>;
}

/** A started engine. */
export interface Engine {
  /** Begin one request; each call of `next` computes one more step and returns its JSON, or null after the last. */
  begin(request: string): Steps;
  /** Bytes of the heap: it grows and never shrinks. */
  heapBytes(): number;
  python: PyodideAPI;
}

/** The steps of one request. */
export interface Steps {
  next(): string | null;
  /** Give up what has not been computed yet. */
  close(): void;
}

const PACKAGES = "/lib/python3.14/site-packages";
/** Settings of the interpreter: no cache of verdicts, and sets in the same order in every visit. */
export const ENVIRONMENT = { PYTHONHASHSEED: "0", MEMCHECK_NO_CACHE: "1", NO_COLOR: "1", HOME: "/home/page" };

/** Start Python from its beginning: runtime, standard library, engine. */
export async function startPlain(source: Source, bridge: string): Promise<Engine> {
  const engine = source.engine();
  engine.catch(() => undefined); // reported where it is waited for
  const python = await source.loadPyodide({
    indexURL: source.indexURL,
    stdLibURL: source.stdLibURL,
    lockFileContents: { info: source.packages, packages: {} } as never,
    packageBaseUrl: source.indexURL,
    env: { ...ENVIRONMENT },
    checkAPIVersion: true,
    stdin: () => null,
  });
  unpack(await engine, PACKAGES, python.FS as unknown as FileSystem);
  python.runPython(bridge);
  return engineOf(python);
}

/** The calls of a started interpreter that has run the bridge. */
export function engineOf(python: PyodideAPI): Engine {
  const steps = (python.globals as unknown as { get(name: string): unknown }).get("steps") as (request: string) => { next(): { done: boolean; value: string } } & Proxy;
  return {
    python,
    heapBytes: () => (python as unknown as { _module: { HEAPU8: Uint8Array } })._module.HEAPU8.byteLength,
    begin(request) {
      const iterator = steps(request);
      let open = true;
      const close = () => {
        if (open) {
          open = false;
          iterator.destroy();
        }
      };
      return {
        next() {
          if (!open) return null;
          const { done, value } = iterator.next();
          if (!done) return value;
          close();
          return null;
        },
        close,
      };
    },
  };
}

interface Proxy {
  destroy(): void;
}
