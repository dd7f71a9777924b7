// Draws the little Markdown that models write, as nodes and never as HTML.

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

function inline(text) {
  return text.split(INLINE).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) {
      return element("code", part.slice(1, -1));
    }
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) {
      return element("strong", part.slice(2, -2));
    }
    return part;
  });
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function prose(text) {
  const blocks = [];
  for (const line of text.split("\n")) {
    const item = /^\s*(?:([-*+])|(\d+)[.)])\s+(.*)/.exec(line);
    const heading = /^#{1,6}\s+(.*)/.exec(line);
    const last = blocks.at(-1);
    if (item) {
      const kind = item[1] ? "ul" : "ol";
      if (last?.kind === kind) last.lines.push(item[3]);
      else blocks.push({ kind, lines: [item[3]], start: Number(item[2] || 1) });
    } else if (heading) {
      blocks.push({ kind: "heading", lines: [heading[1]] });
    } else if (!line.trim()) {
      blocks.push({ kind: "gap", lines: [] });
    } else if (last?.kind === "p") {
      last.lines.push(line);
    } else {
      blocks.push({ kind: "p", lines: [line] });
    }
  }
  return blocks.filter((block) => block.kind !== "gap").map(draw);
}

function draw({ kind, lines, start }) {
  if (kind === "p") return element("p", ...inline(lines.join("\n")));
  if (kind === "heading") return element("p", element("strong", ...inline(lines[0])));
  const list = element(kind, ...lines.map((line) => element("li", ...inline(line))));
  if (kind === "ol" && start > 1) list.start = start;
  return list;
}

/** Nodes for `text`, which may still be growing. */
export function markdown(text) {
  const nodes = [];
  text.split(/^\s*```[^\n]*\n?/m).forEach((part, index) => {
    if (index % 2) nodes.push(element("pre", element("code", part.replace(/\n$/, ""))));
    else nodes.push(...prose(part));
  });
  return nodes;
}
