/**
 * Reads `engine.pack`: a little-endian uint32 with the length of the index, the index as JSON, then all files as one run
 * of bytes. The index is a list of `[path, offset, size]`; offsets count from the first byte after the index.
 */

/** One file of a pack: its path below the folder it is unpacked into, and a view of its bytes. */
export interface PackedFile {
  path: string;
  bytes: Uint8Array;
}

/** The files of a pack as views of `pack`, without a copy. Throws a `RangeError` where the pack is cut or damaged. */
export function readPack(pack: Uint8Array): PackedFile[] {
  if (pack.byteLength < 4) throw new RangeError("the pack is shorter than its header");
  const header = new DataView(pack.buffer, pack.byteOffset, pack.byteLength);
  const start = 4 + header.getUint32(0, true);
  if (start > pack.byteLength) throw new RangeError("the pack ends inside its index");
  const index: unknown = JSON.parse(new TextDecoder().decode(pack.subarray(4, start)));
  if (!Array.isArray(index)) throw new RangeError("the index of the pack is not a list");
  return index.map((entry: unknown) => {
    if (!Array.isArray(entry)) throw new RangeError("an entry of the pack's index is not a list");
    const [path, offset, size] = entry as unknown[];
    if (typeof path !== "string" || !isCount(offset) || !isCount(size)) {
      throw new RangeError("an entry of the pack's index is not a path, an offset and a size");
    }
    if (path.startsWith("/") || path.split("/").includes("..")) {
      throw new RangeError(`the pack names a path outside its folder: ${path}`);
    }
    if (start + offset + size > pack.byteLength) throw new RangeError(`the pack ends inside ${path}`);
    return { path, bytes: pack.subarray(start + offset, start + offset + size) };
  });
}

function isCount(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

/** What unpacking needs of Emscripten's file system. */
export interface FileSystem {
  mkdirTree(path: string): void;
  writeFile(path: string, bytes: Uint8Array, options?: { canOwn?: boolean }): void;
}

/** Write all files of a pack below `folder`. Folders are made once each, which halves the time. */
export function unpack(pack: Uint8Array, folder: string, files: FileSystem): number {
  const made = new Set<string>();
  const packed = readPack(pack);
  for (const { path, bytes } of packed) {
    const target = `${folder}/${path}`;
    const parent = target.slice(0, target.lastIndexOf("/"));
    if (!made.has(parent)) {
      files.mkdirTree(parent);
      made.add(parent);
    }
    files.writeFile(target, bytes, { canOwn: true });
  }
  return packed.length;
}
