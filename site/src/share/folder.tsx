/** `memcheck ui`: the plans of a folder on this machine, opened and saved where they are. */
import { computed, signal } from "@preact/signals";
import type { FolderPlan, Native } from "../engine/native.ts";
import { Dialog } from "../frame/dialog.tsx";
import { tell } from "../frame/toast.tsx";
import { path, text } from "../session.ts";
import { show } from "./incoming.ts";
import { difference } from "./difference.ts";

interface Reading {
  native: Native;
  name: string;
  plans: readonly FolderPlan[];
}
/** The folder that is read; null on a page that no `memcheck ui` serves. */
export const folder = signal<Reading | null>(null);
/** The plan of the folder that is shown, as it is on the disk. */
const opened = signal<{ path: string; text: string; digest: string } | null>(null);
/** What another program wrote to the plan while it was changed here. */
const conflict = signal<{ message: string; text: string } | null>(null);
export const unsaved = computed(() => opened.value !== null && path.value === opened.value.path && text.value !== opened.value.text);

export async function openFolder(native: Native): Promise<void> {
  const found = await native.folder();
  folder.value = { native, name: found.folder, plans: found.plans };
  const [first] = found.plans;
  if (first) await openPlan(first.path);
}

export async function openPlan(name: string): Promise<void> {
  const from = folder.value?.native;
  if (!from) return;
  try {
    const found = await from.open(name);
    opened.value = found;
    show(found.path, found.text);
  } catch (error) {
    tell(String(error instanceof Error ? error.message : error));
  }
}

export async function save(): Promise<void> {
  const [from, known, mine] = [folder.value?.native, opened.value, text.value];
  if (!from || !known) return;
  const found = await from.save(known.path, mine, known.digest);
  if ("digest" in found) {
    opened.value = { ...known, text: mine, digest: found.digest };
    tell(`${known.path} is saved.`);
  } else if (found.text !== undefined) conflict.value = { message: found.message, text: found.text };
  else tell(`${found.message} ${found.help}`);
}

/** Keep one of the two texts: this page's is then saved over the disk's. */
async function settle(mine: boolean): Promise<void> {
  const [from, known] = [folder.value?.native, opened.value];
  conflict.value = null;
  if (!from || !known) return;
  const now = await from.open(known.path);
  opened.value = now;
  if (mine) await save();
  else show(now.path, now.text);
}

export function FolderState() {
  const now = folder.value;
  if (!now) return null;
  return (
    <span class="status">
      <span>reading <b>{now.name}</b></span>
      {unsaved.value && (
        <>
          <span class="dot off" />
          <span>not saved</span>
          <button type="button" class="small-button" onClick={() => void save()}>Save</button>
        </>
      )}
    </span>
  );
}

export function Conflict() {
  const now = conflict.value;
  if (!now) return null;
  return (
    <Dialog title="The file has changed on the disk" close={() => (conflict.value = null)}>
      <p>{now.message}</p>
      <pre class="difference" tabIndex={0} role="group" aria-label="Difference between the disk and this page">
        {difference(now.text, text.value).map((line, index) => (
          <span key={index} class={line.sign === "+" ? "good" : line.sign === "-" ? "bad" : ""}>{`${line.sign} ${line.text}\n`}</span>
        ))}
      </pre>
      <p class="soft small">Lines with − are on the disk only, lines with + in this page only.</p>
      <div class="buttons">
        <button type="button" class="button" onClick={() => void settle(false)}>Take the disk's</button>
        <button type="button" class="button main" onClick={() => void settle(true)}>Save this page's</button>
      </div>
    </Dialog>
  );
}
