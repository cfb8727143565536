/** Which dialog is open. */
import { signal } from "@preact/signals";

type Name = "examples" | "paste" | "share" | "sweep" | "compare";
export const dialog = signal<Name | null>(null);
export const close = (): void => void (dialog.value = null);
export const open = (name: Name) => (): void => void (dialog.value = name);
export const openPaste = open("paste");
