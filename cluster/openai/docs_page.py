"""The page at /docs: the routes and their fields, drawn from /openapi.json without outside assets.

FastAPI's own page loads its scripts from a public CDN, which a closed cluster cannot reach.
"""

DOCS_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Pagoda API</title>
<style>
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0;
  padding: .5rem .8rem; }
summary { cursor: pointer; font-weight: 600; }
code { font: .9em ui-monospace, monospace; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-top: .5rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
  border-top: 1px solid var(--line); }
</style>
</head>
<body>
<h1>Pagoda API</h1>
<p>An OpenAI-compatible endpoint. The schema is at <a href="openapi.json">openapi.json</a>.</p>
<main id="routes"><p>Loading the schema&hellip;</p></main>
<script>
const element = (tag, ...children) => {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
};
const resolve = (api, schema) =>
  schema && schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema || {};
const typeName = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return "list of " + typeName(schema.items || {});
  return schema.type || "any";
};
const fieldTable = (title, schema) => {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, field]) =>
    element("tr", element("td", element("code", name)), element("td", typeName(field)),
      element("td", required.has(name) ? "required" : JSON.stringify(field.default ?? null)),
      element("td", field.description || "")));
  const head = element("tr", ...["Field", "Type", "Default", ""].map((t) => element("th", t)));
  const table = element("div", element("table", head, ...rows));
  table.className = "scroll";
  return element("section", element("h3", title), element("p", schema.description || ""), table);
};
const contentSchema = (part) => part?.content?.["application/json"]?.schema;
const routeDetails = (api, method, path, route) => {
  const details = element("details",
    element("summary", element("code", method.toUpperCase() + " " + path)),
    element("p", route.description || ""));
  const body = contentSchema(route.requestBody);
  if (body) details.append(fieldTable("Request: " + typeName(body), resolve(api, body)));
  const answer = contentSchema(route.responses?.["200"]);
  if (answer) details.append(fieldTable("Answer: " + typeName(answer), resolve(api, answer)));
  return details;
};
const draw = (api) => {
  const parts = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, route]) => routeDetails(api, method, path, route)));
  const shared = Object.entries(api.components?.schemas || {}).filter(([, s]) => s.properties);
  const schemas = element("details", element("summary", "All schemas"),
    ...shared.map(([name, schema]) => fieldTable(name, schema)));
  document.getElementById("routes").replaceChildren(...parts, schemas);
};
fetch("openapi.json")
  .then((answer) => answer.ok ? answer.json() : Promise.reject(new Error(answer.status)))
  .then(draw)
  .catch((error) => {
    const text = "The schema could not be read: " + error.message;
    document.getElementById("routes").textContent = text;
  });
</script>
</body>
</html>
"""
