"""An OpenAI-compatible server, just large enough for one session: chat completions that stream, one at a time.

It runs in the environment of the model, which has llama_cpp and none of threadlog. The server that comes with llama_cpp
does not count the tokens of an answer that it streams, and takes no `max_completion_tokens`.

    python small_model_server.py WEIGHTS.gguf PORT
"""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from llama_cpp import Llama, LlamaGrammar
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

CONTEXT_TOKENS = 4_096
ANSWER_TOKENS = 256
BODY_BYTES_MAX = 1_048_576

Body = dict[str, Any]
"""JSON of a foreign format."""


class Model:
    def __init__(self, weights: str) -> None:
        self._llama = Llama(weights, n_ctx=CONTEXT_TOKENS, verbose=False)
        self._end = self._text(self._llama.token_eos())
        self._template = Jinja2ChatFormatter(
            self._llama.metadata["tokenizer.chat_template"], self._end, self._text(self._llama.token_bos())
        )
        self._busy = threading.Lock()

    def answer(self, body: Body) -> Iterator[Body]:
        """Chunks. Raises ValueError for a conversation that is too long."""
        tool = _forced_tool(body)
        prompt = self._template(messages=[_as_text(message) for message in body["messages"]]).prompt
        with self._busy:
            tokens = self._llama.tokenize(prompt.encode(), add_bos=False, special=True)
            parts = self._llama.create_completion(
                prompt=tokens,
                max_tokens=body.get("max_completion_tokens") or body.get("max_tokens") or ANSWER_TOKENS,
                temperature=body.get("temperature", 1.0),
                stop=[self._end],
                grammar=None if tool is None else LlamaGrammar.from_json_schema(json.dumps(tool["parameters"])),
                stream=True,
            )
            said = ""
            if tool is not None:
                yield _chunk({"tool_calls": [_call(id="call_1", type="function", name=tool["name"], arguments="")]})
            for part in parts:
                choice = part["choices"][0]
                said += choice["text"]
                if choice["text"]:
                    yield _chunk(
                        {"content": choice["text"]}
                        if tool is None
                        else {"tool_calls": [_call(arguments=choice["text"])]}
                    )
                if choice["finish_reason"] is not None:
                    is_whole = choice["finish_reason"] == "stop"
                    yield _chunk({}, "tool_calls" if tool is not None and is_whole else choice["finish_reason"])
            generated = len(self._llama.tokenize(said.encode(), add_bos=False))
        usage = {"prompt_tokens": len(tokens), "completion_tokens": generated, "total_tokens": len(tokens) + generated}
        yield {**_chunk({}), "choices": [], "usage": usage}

    def _text(self, token: int) -> str:
        return str(self._llama.detokenize([token], special=True), "utf-8")


def _forced_tool(body: Body) -> Body | None:
    tools: dict[str, Body] = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []}
    match body.get("tool_choice"):
        case {"function": {"name": str() as name}}:
            return tools[name]
        case "required":
            return next(iter(tools.values()))
        case _:
            return None


def _as_text(message: Body) -> Body:
    """The model's template knows nothing but texts."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join([part.get("text", "") for part in content])
    for call in message.get("tool_calls") or []:
        content += f"{call['function']['name']} {call['function']['arguments']}"
    return {"role": message["role"], "content": content}


def _call(name: str | None = None, arguments: str = "", **more: str) -> Body:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"index": 0, **more, "function": function}


def _chunk(delta: Body, finish_reason: str | None = None) -> Body:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "answer", "object": "chat.completion.chunk", "created": 0, "model": "model", "choices": [choice]}


class Handler(BaseHTTPRequestHandler):
    model: Model

    def do_GET(self) -> None:
        self._send_json(200, {"object": "list", "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(min(BODY_BYTES_MAX, int(self.headers["content-length"]))))
        try:
            chunks = self.model.answer(body)
            first = next(chunks)
        except (ValueError, KeyError) as error:
            self._send_json(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self._send_event(json.dumps(first))
        for chunk in chunks:
            self._send_event(json.dumps(chunk))
        self._send_event("[DONE]")

    def _send_event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _send_json(self, status: int, body: Body) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


def main() -> None:
    weights, port = sys.argv[1:]
    Handler.model = Model(weights)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
