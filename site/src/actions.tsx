/** What the header offers, and the dialogs behind it. */
import { signal } from "@preact/signals";
import type { Actions } from "./frame/top.tsx";
import { Examples } from "./share/examples-dialog.tsx";
import { choose } from "./share/files.ts";
import { takeExample, takeFiles } from "./share/incoming.ts";
import { download } from "./share/download.ts";
import { path, text } from "./session.ts";

type Name = "examples" | "paste" | "share" | "sweep" | "compare";
export const dialog = signal<Name | null>(null);
const close = (): void => void (dialog.value = null);
const open = (name: Name) => (): void => void (dialog.value = name);

export const actions: Actions = {
  plan: [
    {
      title: "Start from",
      entries: [
        { label: "Examples", hint: "Plans that teach something, half of which fail", run: open("examples") },
        { label: "Open files", hint: "A plan, a config, a script; more can be dropped on the page", run: () => void choose().then((files) => takeFiles(files, () => undefined)) },
      ],
    },
  ],
  export: [
    { title: "This plan", entries: [{ label: "Plan (YAML)", run: () => download(path.value, text.value, "application/yaml") }, { label: "Print or PDF", run: () => print() }] },
  ],
  compare: open("compare"),
  sweep: open("sweep"),
  share: open("share"),
};

export function Dialogs() {
  switch (dialog.value) {
    case "examples":
      return <Examples close={close} take={(example) => { close(); takeExample(example); }} />;
    default:
      return null;
  }
}
