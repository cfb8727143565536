/** The bar of the verdict as a picture for a slide: SVG with its own colours, or PNG made of that. */

const SHOWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family", "text-anchor"] as const;
const WIDTH = 900;
const MARGIN = 24;
const SCALE = 2;
const NS = "http://www.w3.org/2000/svg";

/** A figure with a title above its bar, both in the colours of the page as it is shown. */
export function svgPicture(bar: SVGSVGElement, title: string, line: string): string {
  const copy = withColours(bar);
  const barHeight = Number(bar.getAttribute("height")) || 80;
  const height = barHeight + 4.2 * MARGIN;
  const styles = getComputedStyle(document.documentElement);
  const colour = (name: string): string => resolved(styles.getPropertyValue(name));
  const outer = document.createElementNS(NS, "svg");
  outer.setAttribute("xmlns", NS);
  outer.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  outer.setAttribute("width", String(WIDTH));
  outer.setAttribute("height", String(height));
  outer.append(
    shape("rect", { width: "100%", height: "100%", fill: colour("--card") }),
    words(title, { x: MARGIN, y: MARGIN + 12, fill: colour("--ink"), "font-size": 20, "font-weight": 700 }),
    words(line, { x: MARGIN, y: MARGIN + 36, fill: colour("--soft"), "font-size": 14 }),
  );
  for (const [name, value] of Object.entries({ x: MARGIN, y: 3.4 * MARGIN, width: WIDTH - 2 * MARGIN, height: barHeight, overflow: "visible" })) {
    copy.setAttribute(name, String(value));
  }
  outer.append(copy);
  return new XMLSerializer().serializeToString(outer);
}

/** The same picture as PNG, twice as large. */
export async function pngPicture(svg: string): Promise<Blob> {
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width * SCALE;
    canvas.height = image.height * SCALE;
    const context = canvas.getContext("2d");
    if (!context) throw new Error("this browser draws no pictures");
    context.scale(SCALE, SCALE);
    context.drawImage(image, 0, 0);
    return await new Promise((resolve, reject) =>
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("this browser writes no PNG"))), "image/png"),
    );
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** A copy whose every shape carries the colours that it has in the page. */
function withColours(source: SVGSVGElement): SVGSVGElement {
  const copy = source.cloneNode(true) as SVGSVGElement;
  const pairs: [Element, Element][] = [[source, copy]];
  for (let pair = pairs.pop(); pair; pair = pairs.pop()) {
    const [from, to] = pair;
    const styles = getComputedStyle(from);
    for (const name of SHOWN) {
      const value = styles.getPropertyValue(name);
      if (value && value !== "none") to.setAttribute(name, name === "fill" || name === "stroke" ? resolved(value) : value);
    }
    to.removeAttribute("class");
    [...from.children].forEach((child, index) => pairs.push([child, to.children[index]!]));
  }
  return copy;
}

/** A colour in the form that every reader of SVG knows. */
function resolved(value: string): string {
  const probe = document.createElement("span");
  probe.style.color = value.trim();
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function shape(name: string, attributes: Record<string, string | number>): SVGElement {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}

function words(text: string, attributes: Record<string, string | number>): SVGElement {
  const made = shape("text", { "font-family": "system-ui, sans-serif", ...attributes });
  made.textContent = text;
  return made;
}
