/** What the address of the page asks for: a plan in a link, an example by name, or nothing. */
import { signal } from "@preact/signals";
import { products } from "../engine/products.ts";
import { tell } from "../frame/toast.tsx";
import { compareWith } from "../result/compare.tsx";
import { chosen } from "../session.ts";
import { exampleNamed } from "./examples-index.ts";
import { show } from "./incoming.ts";
import { type Link, LinkError, readLink } from "./link.ts";

/** Why the link that led here cannot be read; empty where it can. */
export const linkFault = signal("");
/** The section that a link wants to be seen first. */
let wanted = "";

/** Show what the address asks for; false where it asks for nothing that can be shown. */
export async function arrive(fragment: string): Promise<boolean> {
  let link: Link | null;
  try {
    link = await readLink(fragment);
  } catch (error) {
    if (!(error instanceof LinkError)) throw error;
    linkFault.value = error.message;
    return false;
  }
  linkFault.value = "";
  if (!link) return false;
  if (link.plan !== undefined) show("plan.yaml", link.plan);
  else {
    const example = await exampleNamed(link.example ?? "");
    if (!example) {
      linkFault.value = `there is no example ${link.example}`;
      return false;
    }
    show(`${example.name}.yaml`, example.text);
  }
  chosen.value = link.document ?? 0;
  if (link.compared !== undefined) compareWith({ name: "the other plan of the link", path: "other.yaml", text: link.compared, files: {} });
  if (link.version && link.version !== products.version) tell(`This link was made with memcheck ${link.version}. This page has ${products.version}, and figures may differ.`);
  wanted = link.section ?? "";
  return true;
}

/** Scroll to the section that the link named, once it is there. */
export function seek(): void {
  if (!wanted) return;
  const place = document.getElementById(`section-${wanted}`);
  if (!place) return;
  wanted = "";
  place.scrollIntoView();
}
