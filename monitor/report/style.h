// The look of the page, light and dark. The colours of a scale differ in lightness, and the two of verdicts are orange
// and blue: whoever sees no red or green sees both. What a colour says, a sign or a figure says, too.
#pragma once

namespace tensorlane::report {

inline constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --soft: #57606a; --rule: #d0d7de; --fill: #0b5cad; --panel: #f3f5f7;
  --bad: #a63d00; --good: #0b5cad; --s0: #e4eefa; --s1: #a9cbf0; --s2: #6aa3de; --s3: #2f74bd; --s4: #0a3d73; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1318; --text: #e6eaef; --soft: #9aa6b2; --rule: #313a44; --fill: #6cb0f5; --panel: #1a2027;
  --bad: #ff9d57; --good: #7dbcf8; --s0: #16273a; --s1: #1f4670; --s2: #2f71b5; --s3: #64a8ec; --s4: #c9e2fb; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--back); color: var(--text); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; margin: .75rem 0 .25rem; }
p { margin: .25rem 0; } .soft, .legend, .x, .y { color: var(--soft); font-size: .875rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .5rem; margin: 1rem 0; }
.tiles div { background: var(--panel); padding: .5rem .75rem; border-radius: .4rem; } .tiles b { display: block; font-size: 1.25rem; }
.finding { border-left: .3rem solid var(--fill); padding: .1rem 0 .1rem .75rem; margin: .75rem 0; }
.plot { display: grid; grid-template-columns: auto 1fr; gap: 0 .5rem; } .plot svg { width: 100%; height: 10rem; border: solid var(--rule); border-width: 0 0 1px 1px; }
.plot .y { display: flex; flex-direction: column; justify-content: space-between; text-align: right; } .plot .x { grid-column: 2; display: flex; justify-content: space-between; }
.line { fill: none; stroke: var(--fill); stroke-width: 2; vector-effect: non-scaling-stroke; } .grid { stroke: var(--rule); vector-effect: non-scaling-stroke; }
.bar { display: grid; grid-template-columns: min(30%, 11rem) 1fr 4.75rem; gap: .5rem; align-items: center; margin: 2px 0; }
.bar .label { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; } .bar .value { text-align: right; font-variant-numeric: tabular-nums; }
.bar svg { width: 100%; height: 1.1rem; display: block; } .fill { fill: var(--fill); } .back { fill: var(--panel); }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); } .s4 { fill: var(--s4); }
figure { margin: 0; } td span { white-space: nowrap; }
.legend svg { width: 1rem; height: 1rem; vertical-align: -.15rem; } .legend span { white-space: nowrap; margin-right: .75rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; padding: .2rem .75rem .2rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; overflow-wrap: normal; } th { font-weight: 600; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } .bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); } .open { color: var(--soft); }
.verify td { text-align: center; padding: .2rem .4rem; } .verify thead th:not(:first-child) { text-align: center; padding: .2rem .4rem; } .verify th { white-space: nowrap; }
summary { cursor: pointer; color: var(--fill); margin: .5rem 0; } abbr { text-decoration: none; }
)css";

}  // namespace tensorlane::report
