"""Holds the report's style sheet: one palette for light, one for dark, columns that fold."""

STYLE = """
:root{--bg:#fbfbfa;--card:#fff;--ink:#1c2024;--soft:#5f6b76;--line:#e3e6e8;--warn:#9a5b00;
--warn-bg:#fff4dd;--mark:#c0392b;--c0:#1769c4;--c1:#d9570f;--c2:#0b8a6a;--c3:#a63aa8;--c4:#8a6d00;
--c5:#c2294e;--c6:#4b5ad1;--c7:#5b6770}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1c2126;--ink:#e6e9ec;--soft:#9aa6b1;
--line:#2f363d;--warn:#f3c26b;--warn-bg:#33280f;--mark:#ff8a7a;--c0:#6cb2ff;--c1:#ff9d5c;--c2:#4fd1ad;
--c3:#dc8ce0;--c4:#e0c04a;--c5:#ff7f9d;--c6:#9ba6ff;--c7:#b3bec8}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:26px;margin:0}
h2{font-size:18px;margin:36px 0 12px}
header p{margin:2px 0 10px;color:var(--soft);overflow-wrap:anywhere}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 12px;padding:0}
.legend i{display:inline-block;width:18px;height:4px;border-radius:2px;margin-right:7px;
vertical-align:middle;background:var(--c)}
.note{background:var(--warn-bg);color:var(--warn);border-radius:8px;padding:9px 13px;margin:8px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin-top:14px}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tiles b{display:block;font-size:20px;font-weight:600;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:14px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:12px 12px 6px}
figcaption{font-size:14px;font-weight:600;margin:0 0 6px 4px}
svg{display:block;width:100%;height:auto}
svg text{font-size:12px;fill:var(--soft)}
@media (max-width:500px){svg text{font-size:14px}main{padding:18px 12px 40px}}
svg .mark-name{fill:var(--mark)}
.grid{stroke:var(--line);stroke-width:1}
.mark{stroke:var(--mark);stroke-width:1.2;stroke-dasharray:5 4}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.line.faint{stroke-width:1;opacity:.6}
.dots{fill:var(--c);fill-opacity:.55}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}
.c4{--c:var(--c4)}.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}
.wide{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 14px;border-top:1px solid var(--line);text-align:right}
tbody tr:first-child th,tbody tr:first-child td,thead th,thead td{border-top:0}
th[scope=row]{text-align:left;font-weight:400;color:var(--soft)}
.numbers td{white-space:nowrap}
.words td{overflow-wrap:anywhere}
@media (max-width:500px){th,td{padding:5px 9px}}
"""
