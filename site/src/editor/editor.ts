/**
 * The plan as text: CodeMirror in a shadow root, where its styles are adopted sheets that the page's policy allows.
 * Loaded after the first paint. It knows nothing of the engine: text and places come in and go out.
 */
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab, redo, undo } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { Annotation, Compartment, EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Diagnostic, TextEdit } from "../types.ts";
import { marks } from "./diagnostics.ts";
import { type LineHint, hints, setHints } from "./hints.ts";
import { changesOf } from "./places.ts";

/** What the editor asks of the page. */
export interface Host {
  typed: (text: string) => void;
}

/** Marks a change that came from the page, so that it is not told back. */
const fromPage = Annotation.define<boolean>();

const COLOURS = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--link)" },
  { tag: [tags.string, tags.content], color: "var(--ink)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warn)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.meta, tags.labelName, tags.typeName], color: "var(--note)" },
  { tag: [tags.punctuation, tags.separator], color: "var(--soft)" },
]);

const LOOK = EditorView.theme({
  "&": { height: "100%", color: "var(--ink)", backgroundColor: "var(--card)", fontSize: "13px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", overflow: "auto" },
  ".cm-content": { caretColor: "var(--ink)", padding: ".5rem 0" },
  ".cm-gutters": { backgroundColor: "var(--card)", color: "var(--soft)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--inset) 70%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--link) 28%, transparent) !important" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--ink)", border: "1px solid var(--edge)", borderRadius: "8px", boxShadow: "var(--shadow)", maxWidth: "30rem", font: "13px/1.45 system-ui, sans-serif" },
  ".cm-diagnostic": { padding: ".4rem .6rem", borderLeftWidth: "4px" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--bad)" },
  ".cm-diagnostic-warning": { borderLeftColor: "var(--warn)" },
  ".cm-diagnostic-info": { borderLeftColor: "var(--note)" },
  ".cm-diagnosticAction": { backgroundColor: "var(--link)", color: "var(--card)", borderRadius: "5px", padding: ".1rem .5rem" },
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad)", textUnderlineOffset: "3px" },
  ".cm-lintRange-warning": { backgroundImage: "none", textDecoration: "underline wavy var(--warn)", textUnderlineOffset: "3px" },
  ".cm-lintRange-info": { backgroundImage: "none", textDecoration: "underline dotted var(--note)", textUnderlineOffset: "3px" },
  ".cm-hint": { color: "var(--soft)", fontStyle: "italic", marginLeft: "2ch", fontSize: ".93em", pointerEvents: "none" },
  ".cm-panels": { backgroundColor: "var(--inset)", color: "var(--ink)" },
  ".cm-searchMatch": { backgroundColor: "color-mix(in srgb, var(--warn) 35%, transparent)" },
  ".cm-textfield, .cm-button": { backgroundColor: "var(--card)", backgroundImage: "none", color: "var(--ink)", border: "1px solid var(--edge)", borderRadius: "5px" },
});

export interface Editor {
  /** The whole text anew; what is equal at both ends stays, and with it the cursor. */
  show: (text: string) => void;
  /** Edits of the engine's as one step that Ctrl+Z takes back. */
  edit: (edits: readonly TextEdit[]) => void;
  diagnose: (found: readonly Diagnostic[], path: string) => void;
  hint: (lines: readonly LineHint[]) => void;
  reveal: (line: number) => void;
  undo: () => boolean;
  redo: () => boolean;
  text: () => string;
  close: () => void;
}

export function makeEditor(place: HTMLElement, text: string, label: string, host: Host): Editor {
  const root = place.shadowRoot ?? place.attachShadow({ mode: "open" });
  const editable = new Compartment();
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        lintGutter(),
        history(),
        drawSelection(),
        indentUnit.of("  "),
        EditorState.tabSize.of(2),
        indentOnInput(),
        bracketMatching(),
        closeBrackets(),
        yaml(),
        syntaxHighlighting(COLOURS),
        highlightActiveLine(),
        highlightActiveLineGutter(),
        highlightSelectionMatches(),
        hints,
        LOOK,
        EditorView.lineWrapping,
        // The browser's own way to type over a selection writes style attributes, which the page's policy refuses.
        EditorView.domEventHandlers({
          beforeinput(event, view) {
            if (event.inputType !== "insertText" || event.data === null || view.composing || view.state.selection.main.empty) return false;
            event.preventDefault();
            view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
            return true;
          },
        }),
        EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
        // Tab leaves the editor, as everywhere on the page, but for a selection of lines.
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...searchKeymap, ...lintKeymap, { key: "Ctrl-]", run: indentWithTab.run! }]),
        editable.of(EditorView.editable.of(true)),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.some((each) => each.annotation(fromPage))) host.typed(update.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    show(next) {
      const old = view.state.doc.toString();
      if (old === next) return;
      let start = 0;
      while (start < old.length && start < next.length && old[start] === next[start]) start += 1;
      let end = 0;
      while (end < old.length - start && end < next.length - start && old.at(-1 - end) === next.at(-1 - end)) end += 1;
      view.dispatch({
        changes: { from: start, to: old.length - end, insert: next.slice(start, next.length - end) },
        annotations: fromPage.of(true),
      });
    },
    edit(edits) {
      view.dispatch({ changes: changesOf(view.state.doc, edits), annotations: fromPage.of(true), scrollIntoView: false });
    },
    diagnose: (found, path) => view.dispatch(setDiagnostics(view.state, marks(view.state.doc, found, path))),
    hint: (lines) => view.dispatch({ effects: setHints.of(lines) }),
    reveal(line) {
      const at = view.state.doc.line(Math.max(1, Math.min(line, view.state.doc.lines))).from;
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      view.focus();
    },
    undo: () => undo(view),
    redo: () => redo(view),
    text: () => view.state.doc.toString(),
    close: () => view.destroy(),
  };
}
