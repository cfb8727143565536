/** The page's buttons in the engine's HTML: apply a remedy, take another GPU, take a cell of a heat map. */

/** A button that says what it does to those who do not see where it stands. */
export function button(words: string, kind: string, data: Record<string, string>, full = words): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.className = `small-button ${kind}`;
  made.textContent = words;
  if (full !== words) made.setAttribute("aria-label", full);
  Object.assign(made.dataset, data);
  return made;
}

/** "Apply" in every remedy that an edit can write. */
export function withApply(body: HTMLElement, writable: ReadonlySet<string>): void {
  for (const item of body.querySelectorAll<HTMLElement>("[data-remedy]")) {
    const id = item.dataset["remedy"] ?? "";
    const title = item.querySelector("h4")?.textContent ?? "";
    if (writable.has(id)) item.append(button("Apply", "apply", { apply: id }, `Apply: ${title}`));
  }
}

/** "Use" on the card of every GPU but the first, which is the plan's own. */
export function withUse(body: HTMLElement): void {
  for (const card of [...body.querySelectorAll<HTMLElement>("ul.grid > li")].slice(1)) {
    const name = card.querySelector("h4")?.textContent?.trim() ?? "";
    if (name) card.append(button("Use", "use", { gpu: name }, `Use ${name}`));
  }
}
