/** What the engine knows about a position of the text: proposals, and the facts about a key. */
import type { CompletionContext, CompletionResult } from "@codemirror/autocomplete";

export async function complete(_context: CompletionContext): Promise<CompletionResult | null> {
  return null;
}

export async function hover(_text: string, _offset: number): Promise<string | null> {
  return null;
}
