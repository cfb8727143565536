/** Paste anything that says what a job is: a plan, a config of a framework, a script, a command, a model's config.json. */
import { useState } from "preact/hooks";
import { Dialog } from "../frame/dialog.tsx";
import { form } from "../session.ts";
import type { Value } from "../types.ts";
import { choose, read, type TextFile } from "./files.ts";
import { importing } from "./importing.ts";
import { bring } from "./incoming.ts";

export function Paste({ close }: { close: () => void }) {
  const now = importing.value;
  const [pasted, setPasted] = useState(now?.files[0]?.text ?? "");
  const [name, setName] = useState(now?.files[0]?.name ?? "");
  const [settings, setSettings] = useState<Readonly<Record<string, string>>>({});
  const rest = now?.files.slice(1) ?? [];
  const problems = now?.found?.problems ?? [];
  const keys = [...new Set(problems.flatMap((each) => each.keys))];
  // What a config does not say is asked for, with the plan's own hardware as a proposal.
  const proposed = (key: string): string => settings[key] ?? String(form.value?.fields[key]?.value ?? "");
  const leave = (): void => {
    importing.value = null;
    close();
  };
  const take = async (files: readonly TextFile[]): Promise<void> => {
    const [first] = files;
    setPasted(first?.text ?? "");
    setName(first?.name ?? "");
    const stated = Object.fromEntries(keys.map((key) => [key, proposed(key)] as const).filter(([, value]) => value.trim()).map(([key, value]) => [key, typed(value)]));
    if (await bring(files, stated)) close();
  };
  return (
    <Dialog title="Paste a config, a script or a command" close={leave}>
      <p class="soft small">
        A plan; a config of Axolotl, LLaMA-Factory, TRL, torchtune, torchtitan, Megatron, DeepSpeed and others; a training script;
        a <code>torchrun</code> or <code>vllm serve</code> line; a model's <code>config.json</code>. It stays in this browser, and nothing in it is run.
      </p>
      <textarea aria-label="Text" spellcheck={false} value={pasted} onInput={(event) => setPasted(event.currentTarget.value)} />
      <label class="plain-field">
        <span>Name of the file, if it has one</span>
        <input type="text" value={name} placeholder="train.yml" onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      {problems.length > 0 && (
        <div class="notice tone-warn" role="alert">
          <ul>
            {problems.map((each, index) => <li key={index}>Line {each.place.line}: {each.message} <span class="soft">{each.help}</span></li>)}
          </ul>
        </div>
      )}
      {keys.map((key) => (
        <label class="plain-field" key={key}>
          <code>{key}</code>
          <input type="text" value={proposed(key)} onInput={(event) => setSettings({ ...settings, [key]: event.currentTarget.value })} />
        </label>
      ))}
      <div class="buttons">
        <button type="button" class="button" onClick={() => void choose().then(read).then(({ files }) => (files.length ? take(files) : undefined))}>Open files</button>
        <button type="button" class="button main" disabled={!pasted.trim()} onClick={() => void take([{ name: name.trim(), text: pasted }, ...rest])}>Read it</button>
      </div>
    </Dialog>
  );
}

/** A number as a number, everything else as words. */
function typed(value: string): Value {
  return /^\s*\d+(\.\d+)?\s*$/.test(value) ? Number(value) : value.trim();
}
