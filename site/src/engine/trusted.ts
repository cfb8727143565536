/**
 * The policy `memcheck` of Trusted Types. It makes two things and refuses all else: the address of the worker, and HTML
 * that came from the engine in this visit. Browsers without Trusted Types get the plain text.
 */
import workerUrl from "./worker.ts?worker&url";

interface Policy {
  createHTML(text: string): unknown;
  createScriptURL(text: string): unknown;
}

const factory = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: object): Policy } }).trustedTypes;
const rules = {
  createHTML: (text: string) => text,
  createScriptURL(text: string) {
    if (text !== workerUrl && text !== SERVICE) throw new TypeError("only the page's own workers are started");
    return text;
  },
};
const policy: Policy = factory ? factory.createPolicy("memcheck", rules) : rules;
const SERVICE = "sw.js";

/** The address of the engine's worker. */
export function workerAddress(): URL {
  return policy.createScriptURL(workerUrl) as URL;
}

/** The address of the service worker. */
export function serviceAddress(): string {
  return policy.createScriptURL(SERVICE) as string;
}

/** A document made of HTML that the engine has sent in this visit; scripts in it never run. */
export function engineDocument(html: string): Document {
  return new DOMParser().parseFromString(policy.createHTML(html) as string, "text/html");
}
