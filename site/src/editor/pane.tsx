/** The plan as YAML: plain text at once, the editor as soon as it has been loaded. */
import { effect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { findings, lineHints } from "../search.ts";
import { ask, chosen, latest, listeners, path, text } from "../session.ts";
import { Icon } from "../frame/icons.tsx";
import { tell } from "../frame/toast.tsx";
import type { Editor } from "./editor.ts";

let editor: Editor | null = null;

/** Take the last change back, wherever it was made. */
export function undo(): void {
  if (editor?.undo()) typed(editor.text());
}

export function reveal(line: number): void {
  editor?.reveal(line);
}

function typed(next: string): void {
  if (next === text.value) return;
  text.value = next;
  ask();
}

export function YamlPane() {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let gone = false;
    let stop = (): void => undefined;
    const load = async (): Promise<void> => {
      const { makeEditor } = await import("./editor.ts");
      if (gone || !place.current) return;
      const made = makeEditor(place.current, text.value, "The plan as YAML", { typed });
      editor = made;
      listeners.edited = (edits) => made.edit(edits);
      const stops = [
        effect(() => made.show(text.value)),
        effect(() => made.diagnose(findings.value, path.value)),
        effect(() => made.hint(lineHints.value.map((each) => ({ line: each.place.line, text: each.text })))),
      ];
      stop = () => { stops.forEach((each) => each()); made.close(); };
    };
    const idle = setTimeout(() => void load(), 0);
    return () => { gone = true; clearTimeout(idle); stop(); };
  }, []);
  const found = findings.value;
  const count = (severity: string, one: string): string => {
    const number = found.filter((each) => each.severity === severity).length;
    return number ? `${number} ${one}${number === 1 ? "" : "s"}` : "";
  };
  const counts = [count("error", "error"), count("warning", "warning"), count("info", "note")].filter(Boolean).join(", ");
  return (
    <section class="pane-yaml" id="pane-yaml" aria-label="Plan as YAML">
      <div class="yaml-head">
        <h2>{path.value}</h2>
        <span class="counts">{latest.value ? counts || "no findings" : ""}</span>
        <button type="button" class="button plain square" aria-label="Undo" title="Undo" onClick={undo}><Icon name="undo" /></button>
        <button type="button" class="button plain square" aria-label="Copy the plan" title="Copy"
          onClick={() => void navigator.clipboard.writeText(text.value).then(() => tell("The plan is in the clipboard."))}><Icon name="copy" /></button>
      </div>
      <div class="editor" ref={place} data-document={chosen.value}>
        <pre>{text.peek()}</pre>
      </div>
    </section>
  );
}
