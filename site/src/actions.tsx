/** What the header offers, and the dialogs behind it. */
import { close, dialog, open } from "./frame/dialogs.ts";
import type { Actions } from "./frame/top.tsx";
import { Examples } from "./share/examples-dialog.tsx";
import { Paste } from "./share/paste.tsx";
import { choose } from "./share/files.ts";
import { bring, takeExample, takeFiles } from "./share/incoming.ts";
import { download } from "./share/download.ts";
import { path, text } from "./session.ts";

export const actions: Actions = {
  plan: [
    {
      title: "Start from",
      entries: [
        { label: "Examples", hint: "Plans that teach something, half of which fail", run: open("examples") },
        { label: "Open files", hint: "A plan, a config, a script; more can be dropped on the page", run: () => void choose().then((files) => takeFiles(files)) },
        { label: "Paste", hint: "A config, a script, a command line, a model's config.json", run: open("paste") },
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
    case "paste":
      return <Paste close={close} take={(files) => { close(); void bring(files); }} />;
    default:
      return null;
  }
}
