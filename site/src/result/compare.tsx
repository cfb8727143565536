/** Two plans side by side: the one in the page, and one that was put aside, an example, or a file. */
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { Dialog } from "../frame/dialog.tsx";
import { engine, latest, others, path, plan, text } from "../session.ts";
import type { Example } from "../share/examples.ts";
import { choose, read } from "../share/files.ts";
import { show } from "../share/incoming.ts";
import { closeExtra, showExtra } from "./extras.ts";

export interface Aside {
  name: string;
  path: string;
  text: string;
  files: Readonly<Record<string, string>>;
}
/** The plan that the page's is compared with. */
export const aside = signal<Aside | null>(null);
const ID = "comparison";

/** Compare with this plan from now on, whatever happens to the page's own. */
export function compareWith(other: Aside): void {
  aside.value = other;
  compare();
}

export function stop(): void {
  aside.value = null;
  engine()?.cancel(ID);
  closeExtra(ID);
}

function swap(): void {
  const other = aside.value;
  if (!other) return;
  aside.value = { name: path.value, path: path.value, text: text.value, files: others.value };
  show(other.path, other.text, other.files);
}

/** Ask for the comparison of the text as it is now. */
export function compare(): void {
  const other = aside.value;
  if (!other) return;
  const own = plan();
  const name = other.path === own.path || other.path in (own.files ?? {}) ? `other-${other.path.replaceAll("/", "-")}` : other.path;
  void engine()?.search({
    slot: ID,
    request: { do: "compare", ...own, files: { ...own.files, ...other.files, [name]: other.text }, plans: [name] },
    step(step) {
      const title = `Compared with ${other.name}`;
      if (step.step === "drawn") showExtra(ID, { title, html: String(step["html"]), doing: "" });
      if (step.step === "failed") showExtra(ID, { title, html: "", doing: "", failed: String(step["message"]) });
    },
  });
}

export function CompareDialog({ close }: { close: () => void }) {
  const [examples, setExamples] = useState<readonly Example[]>([]);
  useEffect(() => void import("../share/examples.ts").then((module) => setExamples(module.examples)), []);
  const take = (other: Aside): void => {
    close();
    compareWith(other);
  };
  const now = latest.value?.first.name ?? path.value;
  const open = async (): Promise<void> => {
    const { files } = await read(await choose(false));
    const [file] = files;
    if (file) take({ name: file.name, path: file.name, text: file.text, files: {} });
  };
  return (
    <Dialog title="Compare with another plan" close={close}>
      <ul class="choices">
        <li>
          <button type="button" onClick={() => take({ name: `${now}, as it was put aside`, path: path.value, text: text.value, files: others.value })}>
            <b>This plan as it is now</b>
            <small>Change the plan afterwards, and see what changed</small>
          </button>
        </li>
        <li>
          <button type="button" onClick={() => void open()}>
            <b>A file</b>
            <small>Another plan from this computer</small>
          </button>
        </li>
        {examples.map((each) => (
          <li key={each.name}>
            <button type="button" onClick={() => take({ name: each.name, path: `${each.name}.yaml`, text: each.text, files: {} })}>
              <b>{each.name}</b>
              <small>{each.told}</small>
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

/** What can be done with a comparison that stands. */
export function CompareButtons() {
  return (
    <span class="buttons">
      <button type="button" class="button" onClick={swap}>Swap</button>
      <button type="button" class="button" onClick={stop}>Stop</button>
    </span>
  );
}
