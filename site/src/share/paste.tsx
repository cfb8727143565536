/** Paste anything that says what a job is: a plan, a config of a framework, a script, a command, a model's config.json. */
import { useState } from "preact/hooks";
import { Dialog } from "../frame/dialog.tsx";
import { choose, read, type TextFile } from "./files.ts";

interface Props {
  close: () => void;
  take: (files: readonly TextFile[]) => void;
}

export function Paste({ close, take }: Props) {
  const [pasted, setPasted] = useState("");
  const [name, setName] = useState("");
  return (
    <Dialog title="Paste a config, a script or a command" close={close}>
      <p class="soft small">
        Axolotl, LLaMA-Factory, TRL, torchtune, torchtitan, Megatron, NeMo, DeepSpeed, Accelerate; a training script; a
        <code> torchrun</code> or <code>vllm serve</code> line; a model's <code>config.json</code>. Nothing leaves this browser, and nothing in it is run.
      </p>
      <textarea aria-label="Text" spellcheck={false} value={pasted} onInput={(event) => setPasted(event.currentTarget.value)} />
      <label class="field">
        <span>Name of the file, if it has one</span>
        <input type="text" value={name} placeholder="train.yml" onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <div class="buttons">
        <button type="button" class="button" onClick={() => void choose().then(read).then(({ files }) => files.length && take(files))}>Open files</button>
        <button type="button" class="button main" disabled={!pasted.trim()} onClick={() => take([{ name: name.trim(), text: pasted }])}>Read it</button>
      </div>
    </Dialog>
  );
}
