"""The style and the one small script of the status page. Nothing is loaded from elsewhere."""

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1d1f; --soft: #5c6068; --line: #d9dce1; --panel: #f6f7f9;
  --accent: #2f6fde; --good: #05652b; --warn: #7a5200; --bad: #a3121f; --bad-paper: #fdf0f0 }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e6e7e9; --soft: #a3a8b1; --line: #363a41;
  --panel: #1d2024; --accent: #79a8ff; --good: #6fcf97; --warn: #f2c94c; --bad: #ff8f8f; --bad-paper: #33191b } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1.25rem 1rem 3rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { font-size: 1.35rem; margin: 0 0 .5rem } h2 { font-size: 1.15rem; margin: 0 0 .25rem } h3 { font-size: 1rem; margin: 1rem 0 .25rem }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; padding-top: 1rem }
a { color: var(--accent) } p { margin: .35rem 0 } .soft { color: var(--soft) }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: .4rem 1.5rem; margin: 0 }
dt { color: var(--soft); font-size: .82rem } dd { margin: 0 }
table { border-collapse: collapse; margin: .4rem 0; min-width: min(100%, 26rem) } caption { text-align: left; font-weight: 600; padding: .2rem 0 }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
thead th { color: var(--soft); font-weight: 500; font-size: .82rem; white-space: nowrap } tbody th { font-weight: 500 }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.scroll { overflow-x: auto } code { font-size: .9em; white-space: nowrap }
td, th { overflow-wrap: normal } td b, .whole { white-space: nowrap } .name { display: block; overflow-wrap: anywhere; min-width: 9rem }
.tag { display: inline-block; border: 1px solid currentColor; border-radius: 1em; padding: 0 .6em; font-size: .8rem; white-space: nowrap }
.SERVING, .good { color: var(--good) } .LOADING, .DRAINING, .warn { color: var(--warn) } .FAILED, .bad { color: var(--bad) }
.reason { background: var(--bad-paper); border-left: 3px solid var(--bad); padding: .35rem .7rem; margin: .4rem 0; overflow-wrap: anywhere }
details { margin-top: .6rem } summary { cursor: pointer; padding: .3rem 0; font-weight: 600 }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: 1rem; margin: .5rem 0 }
figure { margin: 0; background: var(--panel); border-radius: 6px; padding: .6rem .7rem } figcaption { font-size: .85rem; font-weight: 600 }
svg { display: block; width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
.bar { fill: var(--accent) } .axis { stroke: var(--line) } .mark { stroke: var(--ink); stroke-dasharray: 3 3 }
.line { fill: none; stroke: var(--accent); stroke-width: 1.75; stroke-linejoin: round } .line.refused { stroke: var(--bad); stroke-dasharray: 5 3 }
.key::before { content: ""; display: inline-block; width: 1.2em; border-top: 2px solid var(--accent); margin: 0 .35em .25em 0 } .key.refused::before { border-top: 2px dashed var(--bad) }
@media (max-width: 30rem) { body { padding: .9rem .7rem 2rem; font-size: 14px } th, td { padding-right: .6rem } }
"""

# Replaces what the page shows every few seconds, while somebody looks at it and has not marked any of it.
SCRIPT = """
setInterval(async () => {
  if (document.hidden || String(getSelection())) return;
  try {
    const reply = await fetch(location.pathname);
    if (!reply.ok) throw reply;
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html").querySelector("main");
    const here = document.querySelector("main");
    for (const old of here.querySelectorAll("details[id]")) {
      const match = fresh.querySelector("#" + CSS.escape(old.id));
      if (match) match.open = old.open;
    }
    if (here.contains(document.activeElement) && document.activeElement !== document.body) return;
    here.replaceWith(fresh);
    document.querySelector("#away").hidden = true;
  } catch { document.querySelector("#away").hidden = false; }
}, 5000);
"""

# Names come from folders; should one get past the escaping, no script of it would run.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; script-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
)
