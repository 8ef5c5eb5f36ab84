"""Style: the colours and measures of the page, light and dark."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --ink: #1d2129; --muted: #5a6270; --rule: #d5dae1; --panel: #f5f7f9;
  --line: #eef1f4; --line-edge: #b4bcc8;
  --site: #ffe4bf; --site-edge: #c46a00;
  --tail: #dbe9fb; --tail-edge: #2f6fbf;
  --gradient: #ffffff; --gradient-edge: #1d2129;
  --statistic: #d6f0dc; --statistic-edge: #1f7d3a;
  --refusal: #fde0de; --refusal-edge: #b3261e;
  --flow: #b9c1cc;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181d; --ink: #e7eaef; --muted: #a4adba; --rule: #39414d; --panel: #1d2128;
    --line: #272d36; --line-edge: #566070;
    --site: #4a3312; --site-edge: #f0a04a;
    --tail: #1b3253; --tail-edge: #76aaf0;
    --gradient: #15181d; --gradient-edge: #e7eaef;
    --statistic: #17391f; --statistic-edge: #62c67d;
    --refusal: #4d1d1a; --refusal-edge: #ff8a80;
    --flow: #4d5664;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px 32px 64px; max-width: 1400px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif;
}
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 8px; }
p { margin: 4px 0 12px; max-width: 80ch; }
.muted { color: var(--muted); }
code, pre, svg text, td { font-family: "DejaVu Sans Mono", ui-monospace, Menlo, monospace; }
code, pre, td { font-size: 13px; }
pre { overflow-x: auto; background: var(--panel); padding: 10px 12px; margin: 8px 0; }
.wide { overflow-x: auto; }
.tall { max-height: 80vh; overflow: auto; }
.tall th { position: sticky; top: 0; background: var(--page); }
table { border-collapse: collapse; min-width: 60%; }
th, td { text-align: left; vertical-align: top; padding: 5px 16px 5px 0; }
th { border-bottom: 2px solid var(--rule); font-weight: 600; white-space: nowrap; }
td { border-bottom: 1px solid var(--rule); }
td.name { overflow-wrap: anywhere; min-width: 16ch; }
td.number, th.number { text-align: right; white-space: nowrap; }
summary { cursor: pointer; padding: 4px 0; overflow-wrap: anywhere; }
.refused { color: var(--refusal-edge); }
.notice {
  border-left: 4px solid var(--refusal-edge); background: var(--panel); padding: 8px 14px;
  margin: 12px 0; max-width: 100ch; overflow-wrap: anywhere;
}
.notice.given { border-color: var(--site-edge); }
.bar { display: flex; width: 220px; height: 14px; margin-top: 4px; }
.bar span { display: block; height: 100%; }
.bar .own { background: var(--line-edge); }
.bar .added { background: var(--statistic-edge); }
.key.own { background: var(--line-edge); border-color: var(--line-edge); }
.key.added { background: var(--statistic-edge); border-color: var(--statistic-edge); }
.keys { display: flex; flex-wrap: wrap; gap: 6px 20px; margin: 8px 0 12px; padding: 0; }
.keys li { list-style: none; }
.key { display: inline-block; width: 14px; height: 14px; margin-right: 7px; border: 1.5px solid;
  vertical-align: -2px; border-radius: 3px; }
.key.line { background: var(--line); border-color: var(--line-edge); }
.key.site { background: var(--site); border-color: var(--site-edge); }
.key.tail { background: var(--tail); border-color: var(--tail-edge); }
.key.gradient { background: var(--gradient); border-color: var(--gradient-edge); }
.key.statistic { background: var(--statistic); border-color: var(--statistic-edge); }
.key.refusal { background: var(--refusal); border-color: var(--refusal-edge); }
.key.original { background: var(--tail-edge); border-color: var(--tail-edge); }
.key.rewritten { background: var(--statistic-edge); border-color: var(--statistic-edge); }
svg { display: block; }
.wide svg { max-width: max(100%, 920px); height: auto; }
svg text { font-size: 12px; fill: var(--ink); }
svg text.detail, svg text.tick { fill: var(--muted); }
svg text.title { font-weight: 600; }
svg text.end { text-anchor: end; }
svg text.middle { text-anchor: middle; }
.box rect { stroke-width: 1.5; }
.box.line rect { fill: var(--line); stroke: var(--line-edge); }
.box.site rect { fill: var(--site); stroke: var(--site-edge); }
.box.tail rect { fill: var(--tail); stroke: var(--tail-edge); }
.box.gradient rect { fill: var(--gradient); stroke: var(--gradient-edge); }
.box.statistic rect { fill: var(--statistic); stroke: var(--statistic-edge); }
.box.refusal rect, .box.refused rect { fill: var(--refusal); stroke: var(--refusal-edge); }
.box.refusal text.detail { fill: var(--ink); }
.curve { fill: none; stroke-width: 1.4; stroke: var(--flow); }
.curve.feeding { stroke: var(--site-edge); opacity: 0.22; }
.curve.own { stroke: var(--site-edge); }
.curve.tailing { stroke: var(--tail-edge); }
.curve.measuring { stroke: var(--statistic-edge); }
.curve.refusing { stroke: var(--refusal-edge); stroke-width: 2; }
.axis { stroke: var(--rule); fill: none; }
.stairs { fill: none; stroke-width: 2; }
.stairs.original { stroke: var(--tail-edge); }
.stairs.rewritten { stroke: var(--statistic-edge); }
"""
