/** A plan without figures: what is wrong, and what can be done about it with a click. The last figures stay below, dimmed. */
import { diagnostics, edit, form, choices, good, latest, set } from "../session.ts";
import type { Choice, Diagnostic, TextEdit, Value } from "../types.ts";
import { openPaste } from "../frame/dialogs.ts";
import { reveal } from "../editor/pane.tsx";
import { catalog, loadCatalog } from "../share/catalog.ts";

const NEAREST = 4;
const TONES: Readonly<Record<string, string>> = { error: "bad", warning: "warn" };
const NAME = /[A-Za-z0-9][\w./-]*[A-Za-z0-9]/g;

interface Way {
  label: string;
  run: () => void;
}

/** Legal values of a number next to the one that is refused, the nearest first; of a word all legal ones. */
export function nearest(all: readonly Choice[], now: Value): readonly Choice[] {
  const legal = all.filter((choice) => choice.legal && choice.value !== now);
  if (typeof now !== "number") return legal.slice(0, NEAREST);
  const far = (choice: Choice): number => (typeof choice.value === "number" ? Math.abs(Math.log((choice.value || 0.5) / (now || 0.5))) : Infinity);
  return [...legal].sort((one, other) => far(one) - far(other)).slice(0, NEAREST);
}

function ways(found: Diagnostic): Way[] {
  const key = found.pointer.slice(1).replaceAll("/", ".");
  const made: Way[] = [];
  if (found.fix.length) made.push({ label: "Fix it", run: () => edit(found.fix as TextEdit[]) });
  const field = form.value?.fields[key];
  for (const choice of nearest(choices.value[key] ?? [], field?.value ?? null)) {
    made.push({ label: `${field?.label ?? key}: ${choice.label}`, run: () => set({ [key]: choice.value }) });
  }
  if (key === "model" || key.startsWith("model.")) {
    void loadCatalog();
    const known = new Set(catalog.value?.map((model) => model.name));
    for (const [name] of found.help.matchAll(NAME)) {
      if (known.has(name) && !made.some((way) => way.label === name)) made.push({ label: name, run: () => set({ model: name }) });
    }
    made.push({ label: "Paste a config.json", run: openPaste });
  }
  return made;
}

export function Trouble() {
  const now = latest.value;
  if (!now || now.first.figures) return null;
  const line = diagnostics.value.find((each) => each.severity === "error")?.start.line;
  return (
    <>
      {diagnostics.value.map((each) => {
        return (
          <div class={`notice tone-${TONES[each.severity] ?? "note"}`} key={each.id}>
            <p>
              <b>{each.message}</b> {each.help} <small class="soft">{each.severity} {each.code} {each.name}</small>
            </p>
            <span class="buttons">
              {ways(each).map((way) => <button type="button" class="button" key={way.label} onClick={way.run}>{way.label}</button>)}
              <button type="button" class="button plain" onClick={() => reveal(each.start.line)}>Line {each.start.line}</button>
            </span>
          </div>
        );
      })}
      {good.value && <p class="old-figures">The figures below are of the plan before {line ? `line ${line} was changed` : "the last change"}.</p>}
    </>
  );
}
