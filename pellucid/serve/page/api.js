// Asking the server. Whatever goes wrong comes back as an Error with one clear sentence.

const ATTEMPTS = 4;

/** The response to a request; a full server is asked again when it says so. */
export async function ask(path, options = {}) {
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server can't be reached; is pellucid serve still running?");
    }
    if (response.ok) return response;
    if (response.status === 503 && attempt < ATTEMPTS) {
      const seconds = Number(response.headers.get("Retry-After")) || 1;
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
      continue;
    }
    throw new Error(await sentence(response));
  }
}

export const json = async (path, options) => (await ask(path, options)).json();

/** A path with its parameters, those without a value left out. */
export function address(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

async function sentence(response) {
  try {
    const said = (await response.json()).error;
    return said.charAt(0).toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
  } catch {
    return `The server answered ${response.status}.`;
  }
}
