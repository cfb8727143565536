/** Light or dark: as the system is, until the reader chooses; the choice stays in this browser. */
import { signal } from "@preact/signals";

const KEY = "memcheck-theme";
const WORDS = ["system", "light", "dark"] as const;
type Theme = (typeof WORDS)[number];

function kept(): Theme {
  try {
    return WORDS.find((word) => word === localStorage.getItem(KEY)) ?? "system";
  } catch {
    return "system"; // storage can be forbidden
  }
}

export const theme = signal<Theme>(kept());

export function showTheme(next: Theme): void {
  theme.value = next;
  if (next === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // the choice then lasts for this visit
  }
}

export function turn(): void {
  const dark = theme.value === "dark" || (theme.value === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  showTheme(dark ? "light" : "dark");
}
