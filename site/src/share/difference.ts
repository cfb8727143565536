/** Two texts line by line: what only the first has, what only the second has, and what both have. */

export interface Line {
  sign: "+" | "-" | " ";
  text: string;
}

const MOST_LINES = 2000;

export function difference(before: string, after: string): Line[] {
  const [old, now] = [before.split("\n"), after.split("\n")];
  if (old.length > MOST_LINES || now.length > MOST_LINES) {
    return [...old.map((text): Line => ({ sign: "-", text })), ...now.map((text): Line => ({ sign: "+", text }))];
  }
  // lengths[i][j]: the most lines that old from i on and now from j on have in common
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      lengths[i]![j] = old[i] === now[j] ? lengths[i + 1]![j + 1]! + 1 : Math.max(lengths[i + 1]![j]!, lengths[i]![j + 1]!);
    }
  }
  const found: Line[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push({ sign: " ", text: old[i]! });
      i += 1;
      j += 1;
    } else if (j >= now.length || (i < old.length && lengths[i + 1]![j]! >= lengths[i]![j + 1]!)) {
      found.push({ sign: "-", text: old[i]! });
      i += 1;
    } else {
      found.push({ sign: "+", text: now[j]! });
      j += 1;
    }
  }
  return found;
}
