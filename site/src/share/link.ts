/**
 * Links that hold a plan: `#p=1.PAYLOAD`, where PAYLOAD is the base64url of the raw deflate of the text. The part of an
 * address after `#` never reaches a server. `memcheck link` writes and reads the same.
 *
 * Parts are joined by `&`: `p` a plan, `q` a second one to compare, `d` the number of the plan in its file, `v` the version
 * that made the link, `e` an example by its name, `s` the section to show first. Other parts are ignored.
 */

/** What a link says. At least one of `plan` and `example` is there. */
export interface Link {
  plan?: string;
  compared?: string;
  document?: number;
  version?: string;
  example?: string;
  section?: string;
}

/** Why a link cannot be read: made by a later format, cut or changed on its way, or larger than a link may be. */
export type LinkFault = "newer" | "damaged" | "large";

export class LinkError extends Error {
  readonly fault: LinkFault;

  constructor(fault: LinkFault, message: string) {
    super(message);
    this.fault = fault;
  }
}

/** The format of the payload; a link with a higher one needs a newer page. */
const FORMAT = 1;
/** A plan that is longer than this does not fit into a link. Reading stops here, before more is in memory. */
export const LARGEST_PLAN_BYTES = 256 * 1024;
/** Chat programs cut longer links. */
export const SAFE_LINK_CHARACTERS = 8_000;
/** Beyond this a download is the better way. */
export const LARGEST_LINK_CHARACTERS = 32_000;
/** A payload that cannot be a plan of {@link LARGEST_PLAN_BYTES}: deflate adds less than one byte in a thousand. */
const LARGEST_PAYLOAD_CHARACTERS = Math.ceil((LARGEST_PLAN_BYTES * 1.002 * 4) / 3);

const NAME = /^[\w.+-]{1,100}$/u;

/** The part of an address after `#` that holds a plan. Throws a {@link LinkError} where a plan is too large. */
export async function writeLink(link: Link): Promise<string> {
  const parts: string[] = [];
  if (link.example !== undefined) parts.push(`e=${encodeURIComponent(link.example)}`);
  if (link.plan !== undefined) parts.push(`p=${await writePayload(link.plan)}`);
  if (link.compared !== undefined) parts.push(`q=${await writePayload(link.compared)}`);
  if (link.document) parts.push(`d=${link.document}`);
  if (link.section !== undefined) parts.push(`s=${encodeURIComponent(link.section)}`);
  if (link.version !== undefined) parts.push(`v=${encodeURIComponent(link.version)}`);
  return `#${parts.join("&")}`;
}

/** What the part of an address after `#` holds; null where it holds no plan. Throws a {@link LinkError}. */
export async function readLink(fragment: string): Promise<Link | null> {
  const parts = new Map<string, string>();
  for (const part of fragment.replace(/^#/u, "").split("&", 64)) {
    const [, key, value] = /^([a-z])=(.*)$/su.exec(part) ?? [];
    if (key !== undefined && value !== undefined && !parts.has(key)) parts.set(key, value);
  }
  const [plan, example] = [parts.get("p"), name(parts.get("e"))];
  if (plan === undefined && example === undefined) return null;
  const link: Link = {};
  if (plan !== undefined) link.plan = await readPayload(plan);
  else if (example !== undefined) link.example = example;
  const compared = parts.get("q");
  if (compared !== undefined) link.compared = await readPayload(compared);
  const document = parts.get("d");
  if (document !== undefined && /^\d{1,4}$/u.test(document)) link.document = Number(document);
  const [version, section] = [name(parts.get("v")), name(parts.get("s"))];
  if (version !== undefined) link.version = version;
  if (section !== undefined) link.section = section;
  return link;
}

/** A name in a link, if it is one. */
function name(value: string | undefined): string | undefined {
  if (value === undefined) return undefined;
  try {
    const plain = decodeURIComponent(value);
    return NAME.test(plain) ? plain : undefined;
  } catch {
    return undefined; // a name that is damaged is no name; the plan is read all the same
  }
}

async function writePayload(text: string): Promise<string> {
  const bytes = new TextEncoder().encode(text);
  if (bytes.length > LARGEST_PLAN_BYTES) {
    throw new LinkError("large", `the plan has ${kib(bytes.length)}, and a link holds up to ${kib(LARGEST_PLAN_BYTES)}`);
  }
  const packed = await through(bytes, new CompressionStream("deflate-raw"), Infinity);
  let binary = "";
  for (let start = 0; start < packed.length; start += 0x8000) {
    binary += String.fromCharCode(...packed.subarray(start, start + 0x8000));
  }
  return `${FORMAT}.${btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

async function readPayload(payload: string): Promise<string> {
  const [, format, packed = ""] = /^(\d{1,6})\.([\w-]*)$/u.exec(payload) ?? [];
  if (format !== undefined && Number(format) > FORMAT) {
    throw new LinkError("newer", `the link has format ${format}, and this page reads format ${FORMAT}: reload the page`);
  }
  if (payload.length > LARGEST_PAYLOAD_CHARACTERS) {
    throw new LinkError("large", `the link holds more than a plan of ${kib(LARGEST_PLAN_BYTES)}`);
  }
  const damaged = new LinkError("damaged", "the link is damaged: a part of it was cut or changed on its way");
  if (Number(format) !== FORMAT || packed.length % 4 === 1) throw damaged;
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    bytes = Uint8Array.from(atob(packed.replaceAll("-", "+").replaceAll("_", "/")), (character) => character.charCodeAt(0));
  } catch {
    throw damaged;
  }
  try {
    const text = await through(bytes, new DecompressionStream("deflate-raw"), LARGEST_PLAN_BYTES);
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(text);
  } catch (error) {
    throw error instanceof LinkError ? error : damaged;
  }
}

/** Bytes through a stream, of which no more than `limit` come into memory. */
async function through(bytes: Uint8Array<ArrayBuffer>, stream: GenericTransformStream, limit: number): Promise<Uint8Array<ArrayBuffer>> {
  const writer = (stream.writable as WritableStream<Uint8Array<ArrayBuffer>>).getWriter();
  // What goes wrong while writing is seen while reading.
  writer.write(bytes).catch(() => undefined);
  writer.close().catch(() => undefined);
  const reader = (stream.readable as ReadableStream<Uint8Array<ArrayBuffer>>).getReader();
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > limit) {
      await reader.cancel().catch(() => undefined);
      throw new LinkError("large", `the link holds more than a plan of ${kib(limit)}`);
    }
    chunks.push(value);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}

function kib(bytes: number): string {
  return `${Math.ceil(bytes / 1024)} KiB`;
}
