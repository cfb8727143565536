/** Places of the engine's (line from 1, UTF-16 unit from 0) as offsets of a text. */
import type { Text } from "@codemirror/state";
import type { TextPlace, TextEdit } from "../types.ts";

/** The offset of a place; one beyond the text is its end. */
export function offsetOf(doc: Text, place: TextPlace): number {
  if (place.line > doc.lines) return doc.length;
  const line = doc.line(Math.max(1, place.line));
  return Math.min(line.from + place.character, line.to);
}

export function changesOf(doc: Text, edits: readonly TextEdit[]): { from: number; to: number; insert: string }[] {
  return edits.map((edit) => ({ from: offsetOf(doc, edit.start), to: endOf(doc, edit.end), insert: edit.text }));
}

/** The end of an edit may lie at the start of a line that a text without a last line break does not have. */
function endOf(doc: Text, place: TextPlace): number {
  return offsetOf(doc, place);
}

/** A text after edits, without an editor: the same as the editor makes of them. */
export function edited(text: string, edits: readonly TextEdit[]): string {
  const lines = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines.push(at + 1);
  const offset = (place: TextPlace): number => (place.line > lines.length ? text.length : Math.min(lines[place.line - 1]! + place.character, text.length));
  const found = edits.map((edit) => ({ from: offset(edit.start), to: offset(edit.end), insert: edit.text }));
  found.sort((one, other) => other.from - one.from);
  return found.reduce((done, each) => done.slice(0, each.from) + each.insert + done.slice(each.to), text);
}
