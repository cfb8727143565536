/** The engine's findings as marks of the editor: message and help as plain text, and a button where there is one right fix. */
import type { Diagnostic as Mark } from "@codemirror/lint";
import type { Text } from "@codemirror/state";
import type { EditorView } from "@codemirror/view";
import type { Diagnostic } from "../types.ts";
import { changesOf, offsetOf } from "./places.ts";

export function marks(doc: Text, found: readonly Diagnostic[], path: string): Mark[] {
  return found.filter((each) => each.path === path).map((each) => {
    const from = offsetOf(doc, each.start);
    const to = Math.max(from, offsetOf(doc, each.end));
    return {
      from,
      to: Math.min(doc.length, Math.max(to, from)),
      severity: each.severity === "error" || each.severity === "warning" ? each.severity : "info",
      source: `${each.code} ${each.name}`,
      message: each.help ? `${each.message}\n${each.help}` : each.message,
      actions: each.fix.length
        ? [{ name: "Fix", apply: (view: EditorView) => view.dispatch({ changes: changesOf(view.state.doc, each.fix) }) }]
        : [],
    };
  });
}
