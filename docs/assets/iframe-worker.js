/* Browsers refuse workers to pages that were opened from a file. The search needs one; this runs it in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script>
        var postMessage = data => parent.postMessage(data, "*");
        var importScripts = (...urls) => Promise.all(urls.map(url => new Promise((loaded, failed) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: loaded, onerror: failed });
          document.head.append(script);
        })));
      </script><script src="${new URL(url, location)}"></script>`;
      this.frame.onload = () => {
        this.waiting.forEach(data => this.send(data));
        this.waiting = null;
      };
      addEventListener("message", event => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }

    send(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
