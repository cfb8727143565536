/** A link that holds the plan, with what is to know before it is sent. */
import { useEffect, useState } from "preact/hooks";
import { products } from "../engine/products.ts";
import { Dialog } from "../frame/dialog.tsx";
import { aside } from "../result/compare.tsx";
import { chosen, others, path, text } from "../session.ts";
import { download } from "./download.ts";
import { LARGEST_LINK_CHARACTERS, type Link, SAFE_LINK_CHARACTERS, writeLink } from "./link.ts";

/** What is in sight, as a link says it. */
function shown(): Link {
  const other = aside.value;
  return { plan: text.value, version: products.version, document: chosen.value, ...(other ? { compared: other.text } : {}) };
}

export function Share({ close }: { close: () => void }) {
  const [link, setLink] = useState("");
  const [fault, setFault] = useState("");
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    const base = location.href.split("#")[0] ?? "";
    writeLink(shown()).then((fragment) => setLink(base + fragment), (error: unknown) => setFault(error instanceof Error ? error.message : String(error)));
  }, []);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(link);
    setCopied(true);
  };
  const long = link.length > SAFE_LINK_CHARACTERS;
  const tooLong = fault !== "" || link.length > LARGEST_LINK_CHARACTERS;
  const files = Object.keys(others.value).length;
  return (
    <Dialog title="Share this plan" close={close}>
      <p>The link holds the whole plan{aside.value ? " and the one that it is compared with" : ""}. The part after # is read by the browser alone and never sent to a server.</p>
      {tooLong ? (
        <p class="well">{fault ? `${fault}.` : `The link would have ${link.length.toLocaleString("en")} characters.`} Send the file instead.</p>
      ) : (
        <input type="text" readOnly aria-label="Link" value={link} onFocus={(event) => event.currentTarget.select()} />
      )}
      {long && !tooLong && <p class="well">The link has {link.length.toLocaleString("en")} characters. Chat programs cut links of more than {SAFE_LINK_CHARACTERS.toLocaleString("en")}.</p>}
      {files > 0 && <p class="well">The link does not hold the {files} other {files === 1 ? "file" : "files"} that this plan was opened with.</p>}
      <div class="buttons">
        <button type="button" class="button" onClick={() => download(path.value, text.value, "application/yaml")}>Download the plan</button>
        {!tooLong && <button type="button" class="button main" disabled={!link} onClick={() => void copy()}>{copied ? "Copied" : "Copy the link"}</button>}
      </div>
      <p class="unseen" role="status">{copied ? "The link is in the clipboard." : ""}</p>
    </Dialog>
  );
}
