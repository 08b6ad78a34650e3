#pragma once

/// The page at /: a text, its continuation as it comes, and what the server does.
inline constexpr char const* page = R"page(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>trireme</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 50em; padding: 0 1em }
:root { color-scheme: light dark }
textarea { width: 100%; box-sizing: border-box; font: inherit }
input[type=number] { width: 5em }
#text { white-space: pre-wrap; border: 1px solid #8888; border-radius: 4px; padding: .7em; min-height: 8em }
#text b { font-weight: normal; color: #0a7f5a }
#state, label { font-size: .85em; color: #777; margin-right: 1em }
#problem { color: #c22 }
</style></head><body>
<h1 id="model">trireme</h1>
<textarea id="prompt" rows="5" autofocus>The </textarea>
<p><button id="go">Continue</button> <button id="stop" disabled>Stop</button>
<label><input id="chat" type="checkbox"> as a chat</label>
<label>tokens <input id="tokens" type="number" min="1" value="100"></label>
<label>temperature <input id="temperature" type="number" min="0" step="0.1" value="0.7"></label>
<label>key <input id="key" type="password" size="8" autocomplete="off"></label></p>
<div id="text"></div>
<p id="problem"></p>
<p id="state"></p>
<script>
const at = id => document.getElementById(id);
const headers = () => at("key").value ? {Authorization: "Bearer " + at("key").value} : {};
let running = null, model = "";
async function go() {
  const chat = at("chat").checked, prompt = at("prompt").value, text = at("text");
  const asked = {model, stream: true, max_tokens: +at("tokens").value, temperature: +at("temperature").value};
  if (chat) asked.messages = [{role: "user", content: prompt}]; else asked.prompt = prompt;
  text.textContent = chat ? "" : prompt;
  const more = text.appendChild(document.createElement("b"));
  at("problem").textContent = "";
  running = new AbortController();
  at("go").disabled = true; at("stop").disabled = false;
  try {
    const answer = await fetch(chat ? "v1/chat/completions" : "v1/completions", {method: "POST",
      headers: {"Content-Type": "application/json", ...headers()}, body: JSON.stringify(asked),
      signal: running.signal});
    if (!answer.ok) throw Error((await answer.json()).error.message);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "";;) {
      const {value, done} = await reader.read();
      if (done) break;
      rest += value;
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event === "data: [DONE]") continue;
        const told = JSON.parse(event.slice(6));
        if (told.error) throw Error(told.error.message);
        for (const choice of told.choices) more.append(chat ? choice.delta.content || "" : choice.text);
      }
    }
  } catch (problem) {
    if (problem.name !== "AbortError") at("problem").textContent = problem.message;
  }
  at("go").disabled = false; at("stop").disabled = true;
}
let before = null;
async function look() {
  try {
    if (!model) {
      const answer = await fetch("v1/models", {headers: headers()});
      if (answer.ok) { model = (await answer.json()).data[0].id; at("model").textContent = model; }
    }
    const answer = await fetch("metrics", {headers: headers()});
    if (!answer.ok) throw Error((await answer.json()).error.message);
    const now = {time: Date.now()};
    for (const line of (await answer.text()).split("\n")) {
      const found = /^trireme_(\w+) (\d+)$/.exec(line);
      if (found) now[found[1]] = +found[2];
    }
    const more = before ? now.tokens_generated_total - before.tokens_generated_total : 0;
    const speed = more * 1000 / (before ? now.time - before.time : 1);
    before = now;
    at("state").textContent = `${now.requests_running} running, ${now.requests_waiting} waiting, ` +
      `${now.pages_used} of ${now.pages} pages, ${speed.toFixed(1)} tokens a second`;
  } catch (problem) {
    at("state").textContent = problem.message;
  }
  setTimeout(look, 1000);
}
at("go").onclick = go;
at("stop").onclick = () => running.abort();
look();
</script></body></html>
)page";
