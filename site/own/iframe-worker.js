// Pages that are opened as files may not start a worker, so the worker of the search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => {
        const early = this.waiting;
        this.waiting = null;
        early.forEach((data) => this.postMessage(data));
      });
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.reply = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.document.write(`<script>postMessage = reply</script><script src="${url}"></script>`);
      inside.document.close();
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
