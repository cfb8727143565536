/** Hands a file to the reader. Nothing leaves the browser. */

export function download(name: string, content: string | Blob, type = "text/plain"): void {
  const blob = typeof content === "string" ? new Blob([content], { type: `${type};charset=utf-8` }) : content;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = safe(name);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A file name without what a system refuses or reads as a folder. */
export function safe(name: string): string {
  return name.replace(/[\x00-\x1f\x7f/\\:*?"<>|]+/g, "-").replace(/^[.\s]+/, "").slice(0, 120) || "plan";
}
