/** Starts Python and memcheck in it; the same in the page's worker and in node, which differ in where bytes come from. */
import type { PyodideAPI, PyodideConfig } from "pyodide";
import { unpack, type FileSystem } from "./pack.ts";
import { readSnapshot } from "./snapshot.ts";

/** Where the engine's files come from. Each function is called at most once. */
export interface Source {
  /** Pyodide's own entry, from the same build as the runtime. */
  loadPyodide(options: PyodideConfig): Promise<PyodideAPI>;
  /** Makes the runtime; the default export of `pyodide.asm.mjs`. */
  createRuntime: CreateRuntime;
  /** The folder, with a slash at its end, below which Pyodide asks for its parts. */
  indexURL: string;
  /** What Pyodide checks of its list of packages before it uses none of them. */
  packages: Record<string, string>;
  /** The bytes of `engine.pack`: memcheck and what it imports. */
  engine(): Promise<Uint8Array>;
  /** What Pyodide asks for as its standard library: the archive, and one without files while the archive is coming. */
  libraryURL: string;
  emptyURL: string;
  /** The bytes of the archive of the standard library. */
  library(): Promise<Uint8Array>;
  /** The text of `bridge.py`. */
  bridge: string;
}

/** Emscripten's factory of a runtime, whose heap is there before Python starts. */
export type CreateRuntime = (settings: never) => Promise<Runtime>;

/** What a start needs of a runtime. */
export interface Runtime {
  HEAPU8: Uint8Array;
  /** Make the heap at least this large; false where there is no memory. */
  _emscripten_resize_heap(bytes: number): boolean | number;
}

/** A started engine. */
export interface Engine {
  python: PyodideAPI;
  /** Begin one request of the protocol, as JSON text. */
  begin(request: string): Steps;
  /** Begin to import the modules of some packages; a step each. */
  prepare(packages: string[]): Steps;
  /** Bytes of the heap: it grows and never shrinks. */
  heapBytes(): number;
  /** Resolves when all files of the engine are there; at once after a plain start. */
  files(): Promise<void>;
}

/** The steps of one request. */
export interface Steps {
  /** Compute one more step and return its JSON, or null after the last. Throws what leaves Python. */
  next(): string | null;
  /** Give up what has not been computed yet. */
  close(): void;
}

const PACKAGES = "/lib/python3.14/site-packages";
const LIBRARY = "/lib/python314.zip";
/** Settings of the interpreter: no cache of verdicts, and sets in the same order in every visit. */
const ENVIRONMENT = { PYTHONHASHSEED: "0", MEMCHECK_NO_CACHE: "1", NO_COLOR: "1", HOME: "/home/page" };

function options(source: Source, stdLibURL: string, made: (runtime: Runtime) => void): PyodideConfig {
  const createPyodideModule: CreateRuntime = async (settings) => {
    const runtime = await source.createRuntime(settings);
    made(runtime);
    return runtime;
  };
  return {
    createPyodideModule: createPyodideModule as never,
    indexURL: source.indexURL,
    stdLibURL,
    lockFileContents: { info: source.packages, packages: {} } as never,
    packageBaseUrl: source.indexURL,
    env: { ...ENVIRONMENT },
    stdin: () => null,
  };
}

/** Start Python from its beginning: runtime, standard library, engine. */
export async function startPlain(source: Source, makeSnapshot = false): Promise<Engine> {
  const engine = source.engine();
  engine.catch(() => undefined); // reported where it is waited for
  const python = await source.loadPyodide({ ...options(source, source.libraryURL, () => undefined), _makeSnapshot: makeSnapshot });
  unpack(await engine, PACKAGES, python.FS as unknown as FileSystem);
  python.runPython(source.bridge);
  return engineOf(python, () => Promise.resolve());
}

/**
 * Start Python from a snapshot of a heap in which the engine has answered already. The files come after it: whatever needs
 * them before ends with `NotYet`. Throws where the snapshot cannot be restored; a plain start is the way then.
 */
export async function startSnapshot(source: Source, file: Promise<Uint8Array>): Promise<Engine> {
  const found = file.then(readSnapshot);
  const loaded = found.then(({ snapshot }) => snapshot);
  let restore: ((runtime: Runtime) => void) | null = null;
  found.then(
    ({ snapshot, restore: putBack }) => {
      restore = (runtime) => {
        // A fresh heap has 30 MiB, and Pyodide copies a larger one into it without a look.
        if (runtime.HEAPU8.length < snapshot.length && !runtime._emscripten_resize_heap(snapshot.length)) {
          throw new RangeError("there is no memory for the snapshot");
        }
        putBack(runtime.HEAPU8);
      };
    },
    () => undefined, // reported where Pyodide waits for it
  );
  const python = await source.loadPyodide({
    ...options(source, source.emptyURL, (runtime) => restore?.(runtime)), // Pyodide waits for the snapshot before this
    _loadSnapshot: loaded,
  });
  python.runPython("resume()");
  let arrival: Promise<void> | null = null;
  const files = async () => {
    const [engine, library] = await Promise.all([source.engine(), source.library()]);
    const disk = python.FS as unknown as FileSystem;
    unpack(engine, PACKAGES, disk);
    disk.writeFile(LIBRARY, library);
    python.runPython("arrive()");
  };
  return engineOf(python, () => (arrival ??= files()));
}

/** The calls of a started interpreter that has run the bridge. */
function engineOf(python: PyodideAPI, files: () => Promise<void>): Engine {
  const globals = python.globals as unknown as { get(name: string): (argument: string) => Iteration };
  const steps = globals.get("steps");
  const prepare = globals.get("import_packages");
  return {
    python,
    files,
    heapBytes: () => (python as unknown as { _module: { HEAPU8: Uint8Array } })._module.HEAPU8.byteLength,
    begin: (request) => stepsOf(steps(request)),
    prepare: (packages) => stepsOf(prepare(packages.join(" "))),
  };
}

/** A generator of Python, as JavaScript sees it. */
interface Iteration {
  next(): { done: boolean; value: string };
  return(value: unknown): unknown;
  destroy(): void;
}

function stepsOf(iteration: Iteration): Steps {
  let open = true;
  const close = () => {
    if (!open) return;
    open = false;
    iteration.return(null);
    iteration.destroy();
  };
  return {
    close,
    next() {
      if (!open) return null;
      const { done, value } = iteration.next();
      if (!done) return value;
      close();
      return null;
    },
  };
}

/** Whether an exception that left Python says that files of the engine have not come. */
export function isNotYet(error: unknown): boolean {
  return error instanceof Error && (error as { type?: unknown }).type === "NotYet";
}
