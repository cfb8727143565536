/** Choose an example plan by its name and by what it teaches. */
import { useEffect, useState } from "preact/hooks";
import { Dialog } from "../frame/dialog.tsx";
import type { Example } from "./examples.ts";

export function Examples({ close, take }: { close: () => void; take: (example: Example) => void }) {
  const [all, setAll] = useState<readonly Example[]>([]);
  const [query, setQuery] = useState("");
  useEffect(() => void import("./examples.ts").then(({ examples }) => setAll(examples)), []);
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = all.filter((each) => wanted.every((word) => `${each.name} ${each.told}`.toLowerCase().includes(word)));
  return (
    <Dialog title="Examples" close={close}>
      <input type="search" aria-label="Filter examples" placeholder="Filter" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
      <ul class="choices">
        {hits.map((each) => (
          <li key={each.name}>
            <button type="button" onClick={() => take(each)}>
              <b>{each.name}</b>
              <small>{each.told}</small>
            </button>
          </li>
        ))}
      </ul>
      {all.length > 0 && !hits.length && <p class="soft">No example has these words.</p>}
    </Dialog>
  );
}
