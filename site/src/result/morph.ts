/**
 * Puts the engine's HTML in place by changing only what differs: focus, selection, scroll and open parts stay.
 * The buttons of the page become part of the new HTML before, so that they stay, too.
 */
import { Idiomorph } from "idiomorph";
import { engineDocument } from "../engine/trusted.ts";


/** The elements of some HTML of the engine's. */
export function parsed(html: string): HTMLElement {
  return engineDocument(html).body;
}

/** Make the children of `target` those of `html`; `adorn` may add buttons to them before. */
export function morph(target: Element, html: string, adorn: (body: HTMLElement) => void = () => undefined): void {
  const body = parsed(html);
  adorn(body);
  Idiomorph.morph(target, [...body.childNodes], {
    morphStyle: "innerHTML",
    ignoreActiveValue: true,
    restoreFocus: true,
    callbacks: {
      // Whether a part is open is the reader's choice, of which the engine's HTML knows nothing.
      beforeAttributeUpdated: (name: string, node: Element) => !(name === "open" && node.tagName === "DETAILS"),
    },
  });
}
