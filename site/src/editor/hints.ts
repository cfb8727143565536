/** What a line is responsible for, in grey after it. */
import { RangeSetBuilder, StateEffect, StateField, type Text } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, WidgetType } from "@codemirror/view";

export interface LineHint {
  /** From 1. */
  line: number;
  text: string;
}

export const setHints = StateEffect.define<readonly LineHint[]>();

class Hint extends WidgetType {
  readonly words: string;
  constructor(words: string) {
    super();
    this.words = words;
  }
  override eq(other: Hint): boolean {
    return other.words === this.words;
  }
  toDOM(): HTMLElement {
    return Object.assign(document.createElement("span"), { className: "cm-hint", textContent: this.words });
  }
}

function drawn(doc: Text, lines: readonly LineHint[]): DecorationSet {
  const builder = new RangeSetBuilder<Decoration>();
  for (const { line, text } of [...lines].sort((one, other) => one.line - other.line)) {
    if (line < 1 || line > doc.lines) continue;
    const end = doc.line(line).to;
    builder.add(end, end, Decoration.widget({ widget: new Hint(text), side: 1 }));
  }
  return builder.finish();
}

/** Hints move with their lines, and go where their line is changed. */
export const hints = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(value, transaction) {
    let next = value.map(transaction.changes);
    if (transaction.docChanged) {
      transaction.changes.iterChangedRanges((_from, _to, start, end) => {
        const [first, last] = [transaction.newDoc.lineAt(start).from, transaction.newDoc.lineAt(end).to];
        next = next.update({ filterFrom: first, filterTo: last, filter: () => false });
      });
    }
    for (const effect of transaction.effects) if (effect.is(setHints)) next = drawn(transaction.newDoc, effect.value);
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});
