// Browsers give no worker to a page that was opened from disk. There a hidden frame does the work of the site's search:
// it runs the worker's script, hears what is posted to it, and what it posts is heard here.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "Search";
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.hear(data);
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
      this.ready = load(inside, new URL(url, location.href).href);
    }

    hear(data) {
      const message = new MessageEvent("message", { data });
      this.dispatchEvent(message);
      this.onmessage?.(message);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

function load(inside, url) {
  return new Promise((loaded, failed) => {
    const script = inside.document.createElement("script");
    script.src = url;
    script.onload = loaded;
    script.onerror = () => failed(new Error(`${url} can't be read`));
    inside.document.body.append(script);
  });
}
