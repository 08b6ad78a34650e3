# test-timeout: 120
"""The page of the program serve, in headless Chromium, which is driven through its debugging pipe."""

import json
import os
import shutil
import subprocess
import sys
import time

from serving import Server, expect, write_model

found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not found:
    print("skipped: chromium is missing")
    sys.exit(77)


class Browser:
    """A page of a browser. Messages are JSON, each with a zero behind it."""

    def __init__(self, address):
        to_read, self.write = os.pipe()
        self.read, to_write = os.pipe()

        def place():
            saved = [os.dup(each) for each in (to_read, to_write)]
            for number, each in zip((3, 4), saved):
                os.dup2(each, number, inheritable=True)

        self.process = subprocess.Popen(
            [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--remote-debugging-pipe",
             "--user-data-dir=" + os.path.abspath("profile"), "about:blank"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=place)
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for name in ("Runtime", "Network", "Page", "Log"):
            self.ask(name + ".enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        self.ask("Page.navigate", url=address)

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.read, 1 << 16)
                expect(more, "the browser has ended")
                self.rest += more
            one, self.rest = self.rest.split(b"\0", 1)
            told = json.loads(one)
            if told.get("id") == self.number:
                expect("result" in told, told)
                return told["result"]
            self.events.append(told)

    def value(self, expression):
        told = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        expect("exceptionDetails" not in told, told)
        return told["result"].get("value")

    def wait(self, expression, what):
        for _ in range(300):
            out = self.value(expression)
            if out:
                return out
            time.sleep(0.05)
        raise AssertionError((what, self.value("document.body.innerText")))


write_model("small", 256, layers=4, context=2048)
with open("keys", "w", encoding="utf-8") as file:
    file.write("the-key\n")
server = Server("small", "--api-key-file", "keys", key="the-key")
browser = None
try:
    right = server.complete(prompt="The ", max_tokens=1000, temperature=0)["choices"][0]["text"]
    browser = Browser("http://127.0.0.1:%d/" % server.port)
    browser.wait("document.readyState == 'complete' && at('state').textContent.includes('API key')",
                 "a page without a key")
    browser.value("at('key').value = 'the-key'")
    browser.wait("at('model').textContent == 'small' &&"
                 "/^0 running, 0 waiting, 0 of \\d+ pages/.test(at('state').textContent)", "what the server does")

    # A text that goes on, token by token.
    browser.value("at('tokens').value = 1000; at('temperature').value = 0; at('go').click()")
    browser.wait("!at('go').disabled && at('text').textContent.length > 4", "an answer")
    shown = browser.value("at('text').textContent")
    expect(shown == "The " + right, (shown, right))
    pieces = browser.value("at('text').querySelector('b').childNodes.length")
    expect(pieces > 10 and browser.value("at('problem').textContent") == "", "the answer came in %s pieces" % pieces)

    # A chat; an answer that is stopped, of which nothing is left; a problem.
    browser.value("at('chat').click(); at('go').click()")
    browser.wait("!at('go').disabled && at('text').textContent.length > 4", "an answer of a chat")
    expect(browser.value("at('text').textContent") == right, browser.value("at('text').textContent"))
    browser.value("at('chat').click(); at('tokens').value = 2000; at('go').click(); at('stop').click()")
    browser.wait("!at('go').disabled && at('stop').disabled", "the end of a stopped answer")
    expect(browser.value("at('problem').textContent") == "", browser.value("at('problem').textContent"))
    server.expect_idle()
    browser.value("at('tokens').value = 9999; at('go').click()")
    browser.wait("at('problem').textContent.includes('max_tokens: 9999 is not in 0 to 2048')", "a problem")

    width = browser.value("document.documentElement.scrollWidth")
    expect(width <= 390, "the page is %s wide on a telephone" % width)
    for each in browser.events:
        expect(each["method"] != "Runtime.exceptionThrown", each)
        if each["method"] == "Network.requestWillBeSent":
            address = each["params"]["request"]["url"]
            expect(address.startswith(("http://127.0.0.1:%d/" % server.port, "about:")), address)
    server.end()
finally:
    server.process.kill()
    if browser:
        browser.process.kill()
        browser.process.wait()
print("ok")
