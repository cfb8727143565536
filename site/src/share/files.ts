/** Files from the reader's disk, as text with a bound: opened, dropped on the page, or pasted. */

const MOST_BYTES = 1 << 20;
const MOST_FILES = 200;

export interface TextFile {
  /** A relative path with forward slashes. */
  name: string;
  text: string;
}

/** What was read, and why the rest was not. */
export interface Read {
  files: TextFile[];
  refused: string[];
}

export async function read(list: Iterable<File>): Promise<Read> {
  const found: Read = { files: [], refused: [] };
  for (const file of list) {
    const name = nameOf(file);
    if (found.files.length >= MOST_FILES) {
      found.refused.push(`more than ${MOST_FILES} files: the rest was not read`);
      break;
    }
    if (file.size > MOST_BYTES) {
      found.refused.push(`${name} has ${file.size.toLocaleString("en")} bytes, more than ${MOST_BYTES.toLocaleString("en")}`);
      continue;
    }
    const text = await textOf(file);
    if (text === null) found.refused.push(`${name} is not a text file in UTF-8`);
    else found.files.push({ name, text });
  }
  return found;
}

/** The text of a file, or null where it is none. */
async function textOf(file: File): Promise<string | null> {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return null;
  }
}

/** The name below the folder that was opened; the folder's own name is left out. */
function nameOf(file: File): string {
  const inside = file.webkitRelativePath.split("/").slice(1).join("/");
  return (inside || file.name).replace(/[\u0000-\u001f\u007f-\u009f\\:*?"<>|]/g, "-") || "file";
}

/** Ask for files in the browser's own dialog; an empty list where the reader chose none. */
export function choose(many = true): Promise<File[]> {
  return new Promise((resolve) => {
    const input = document.createElement("input");
    input.type = "file";
    input.multiple = many;
    input.addEventListener("change", () => resolve([...(input.files ?? [])]));
    input.addEventListener("cancel", () => resolve([]));
    input.click();
  });
}

/** Take files that are dropped anywhere on the page. `over` is told whether files hang over it. */
export function onDrop(take: (files: File[]) => void, over: (now: boolean) => void): void {
  let depth = 0;
  const has = (event: DragEvent): boolean => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragenter", (event) => { if (has(event)) { depth += 1; over(true); } });
  document.addEventListener("dragleave", (event) => { if (has(event)) { depth -= 1; if (depth <= 0) over(false); } });
  document.addEventListener("dragover", (event) => { if (has(event)) event.preventDefault(); });
  document.addEventListener("drop", (event) => {
    if (!has(event)) return;
    event.preventDefault();
    depth = 0;
    over(false);
    take([...(event.dataTransfer?.files ?? [])]);
  });
}
