"""The application: the page's files, and the API under /api."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ostinato.errors import ConfigError, DataError, OstinatoError, Problem
from ostinato.system_errors import is_out_of_memory
from ostinato.version import __version__
from ostinato.viewer import schema
from ostinato.viewer.calls import BusyError, Call, Calls, ClientGone, TimeLimitError
from ostinato.viewer.guard import Guard, guarded
from ostinato.viewer.live import Watch
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.schema import Failure, Limits, one_line

_log = logging.getLogger("ostinato.viewer")
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_BODY_SECONDS = 10.0
_GONE = 499
"""Nobody reads this status: the client has gone."""
T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]


def view_app(opened: Mapping[str, OpenRun], limits: Limits, host: str = "127.0.0.1") -> Guard:
    """Return the application that shows runs.

    Args:
        host: the address that it is served at.
    """
    from ostinato.viewer.curve import draw_curve
    from ostinato.viewer.describe import describe
    from ostinato.viewer.inspecting import attention, inspect
    from ostinato.viewer.writing import generate

    async def examples(request: Request) -> Response:
        query = _checked(schema.ExamplesQuery, dict(request.query_params))
        run = _run(opened, query.run)
        return await _answered(request, run.calls, lambda call: _page_of(run, query))

    def single(kind: type[R], work: Callable[[OpenRun, R, Call], BaseModel]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            asked = await _body(request, kind, limits)
            run = _run(opened, asked.run)  # type: ignore[attr-defined]
            return await _answered(request, run.calls, lambda call: work(run, asked, call))

        return endpoint

    def stream(kind: type[R], work: Callable[[OpenRun, R, Call, Callable[[Any], None]], None]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            asked = await _body(request, kind, limits)
            run = _run(opened, asked.run)  # type: ignore[attr-defined]
            return _streamed(run.calls, lambda call, emit: work(run, asked, call, emit))

        return endpoint

    routes = [
        Route("/api/runs", _static(_json(describe(dict(opened))))),
        Route("/api/examples", examples),
        Route("/api/inspect", single(schema.Sentence, inspect), methods=["POST"]),
        Route("/api/attention", single(schema.AttentionRequest, attention), methods=["POST"]),
        Route("/api/generate", stream(schema.Sentence, generate), methods=["POST"]),
        Route("/api/curve", stream(schema.CurveRequest, draw_curve), methods=["POST"]),
        Route("/api/schema", _static(api_schema(ENDPOINTS, schema.Runs))),
    ]
    return guarded(_application(routes, "view.html"), host, body=limits.body)


def watch_app(watch: Watch, limits: Limits, host: str = "127.0.0.1") -> Guard:
    """Return the application that shows runs as they are trained."""

    async def runs(request: Request) -> Response:
        return _raw(await asyncio.to_thread(lambda: _json(watch.runs())))

    async def metrics(request: Request) -> Response:
        query = _checked(schema.MetricsQuery, dict(request.query_params))
        return _raw(await asyncio.to_thread(lambda: _json(watch.metrics(query))))

    routes = [
        Route("/api/runs", runs),
        Route("/api/metrics", metrics),
        Route("/api/schema", _static(api_schema(WATCH_ENDPOINTS, schema.Watched))),
    ]
    return guarded(_application(routes, "watch.html"), host, body=limits.body)


def _application(routes: list[Route], first: str) -> Starlette:
    """Return an application with the page's files beside its own routes; no name in a request is one of a file."""
    for name, content in page_files().items():
        if name == first or not name.endswith(".html"):
            path = "/" if name == first else f"/page/{name}"
            routes.append(Route(path, _static(content, _TYPES[name.rpartition(".")[2]])))
    handlers: Any = {HTTPException: _http_error, OstinatoError: _error, Exception: _error}
    return Starlette(routes=routes, exception_handlers=handlers)


def page_files() -> dict[str, bytes]:
    """Return the files of the page by name, read once."""
    folder = files("ostinato.viewer") / "page"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name.rpartition(".")[2] in _TYPES}


Endpoints = tuple[tuple[str, str, type[BaseModel], tuple[type[BaseModel], ...], str], ...]
ENDPOINTS: Endpoints = (
    ("get", "/api/examples", schema.ExamplesQuery, (schema.Examples,), "Examples of a split, with their answers."),
    ("post", "/api/inspect", schema.Sentence, (schema.Inspection,), "What a model does with one sentence."),
    ("post", "/api/attention", schema.AttentionRequest, (schema.Attention,), "Attention weights of one sub-layer."),
    ("post", "/api/generate", schema.Sentence, (schema.Token, schema.Output, schema.Failure), "An output as it grows."),
    ("post", "/api/curve", schema.CurveRequest, (schema.Point, schema.End, schema.Failure), "Accuracy against cost."),
)
"""Method, path, what is asked, what is answered (several: a stream of lines, one JSON object each), and what it is."""

WATCH_ENDPOINTS: Endpoints = (
    ("get", "/api/metrics", schema.MetricsQuery, (schema.Metrics,), "What was added to a run's logs."),
)


def api_schema(endpoints: Endpoints, runs: type[BaseModel]) -> bytes:
    """Return the description of an API in OpenAPI 3.1.

    Args:
        runs: what `/api/runs` answers.
    """
    used: list[type[BaseModel]] = [runs, schema.Failure]
    for _, _, asked, answers, _ in endpoints:
        used += [asked, *answers]
    _, found = models_json_schema(
        [(one, "validation") for one in dict.fromkeys(used)], ref_template="#/components/schemas/{model}"
    )

    def content(kinds: tuple[type[BaseModel], ...]) -> dict[str, Any]:
        refs = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in kinds]
        one: dict[str, Any] = refs[0] if len(refs) == 1 else {"oneOf": refs}
        return {"application/json" if len(refs) == 1 else "application/x-ndjson": {"schema": one}}

    def answers_of(kinds: tuple[type[BaseModel], ...]) -> dict[str, Any]:
        failed = {"description": "Why not, in one line.", "content": content((schema.Failure,))}
        return {"200": {"description": "The answer.", "content": content(kinds)}, "default": failed}

    paths: dict[str, Any] = {
        "/api/runs": {"get": {"summary": "The runs that are shown.", "responses": answers_of((runs,))}}
    }
    for method, path, asked, answers, summary in endpoints:
        operation: dict[str, Any] = {"summary": summary, "responses": answers_of(answers)}
        if method == "post":
            operation["requestBody"] = {"required": True, "content": content((asked,))}
        else:
            operation["parameters"] = [
                {"name": name, "in": "query", "required": field.is_required(), "schema": own}
                for (name, field), own in zip(
                    asked.model_fields.items(), asked.model_json_schema()["properties"].values(), strict=True
                )
            ]
        paths[path] = {method: operation}
    info = {"title": "ostinato view", "version": __version__}
    components = {"schemas": found["$defs"]}
    return json.dumps({"openapi": "3.1.0", "info": info, "paths": paths, "components": components}).encode()


def _json(found: BaseModel) -> bytes:
    return found.model_dump_json().encode()


def _raw(content: bytes, status: int = 200, kind: str = "application/json") -> Response:
    return Response(content, status, media_type=kind)


def _failure(message: str, status: int) -> Response:
    return _raw(_json(Failure(error=message)), status)


def _static(content: bytes, kind: str = "application/json") -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _raw(content, kind=kind)

    return endpoint


def _run(opened: Mapping[str, OpenRun], name: str) -> OpenRun:
    if name not in opened:
        raise ConfigError([Problem("run", name, f"must be one of {', '.join(opened)}")])
    return opened[name]


def _page_of(run: OpenRun, query: schema.ExamplesQuery) -> schema.Examples:
    known = run.examples(query.split)
    shown = list(enumerate(known))[query.offset : query.offset + query.limit]
    views = [
        schema.ExampleView(index=i, source=one.source, target=one.target, columns=_plain(one.columns))
        for i, one in shown
    ]
    return schema.Examples(split=query.split, total=len(known), examples=views)


def _plain(columns: Mapping[str, object]) -> dict[str, Any]:
    """Return metadata as JSON has it."""
    found: dict[str, Any] = json.loads(json.dumps(dict(columns), default=str))
    return found


def _checked(kind: type[R], content: Any) -> R:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise one_line(error) from None


async def _body(request: Request, kind: type[R], limits: Limits) -> R:
    """Return a request's body, checked.

    Raises:
        HTTPException: it is too large, or comes too slowly. ConfigError: it is not what is asked for.
    """
    content = bytearray()

    async def read() -> None:
        async for part in request.stream():
            content.extend(part)
            if len(content) > limits.body:
                raise HTTPException(413, f"a request may have {limits.body:,} bytes")

    try:
        await asyncio.wait_for(read(), _BODY_SECONDS)
    except TimeoutError:
        raise HTTPException(408, "the request did not come in time") from None
    except ClientDisconnect:
        raise HTTPException(_GONE, "the client has gone") from None
    try:
        return kind.model_validate_json(bytes(content))
    except ValidationError as error:
        raise one_line(error) from None


async def _gone(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _answered(request: Request, calls: Calls, work: Callable[[Call], BaseModel]) -> Response:
    """Return what work gives when its turn has come; a client that goes away ends it."""
    call, future = calls.submit(lambda call: _json(work(call)))
    answer: asyncio.Future[Any] = asyncio.wrap_future(future)
    # Of a client that has gone nobody reads what became of its call, which asyncio would complain of.
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    gone = asyncio.create_task(_gone(request))
    try:
        both: set[asyncio.Future[Any]] = {answer, gone}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return _failure("the client has gone", _GONE)
        return _raw(answer.result())
    finally:
        call.cancel()
        future.cancel()
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


def _streamed(calls: Calls, work: Callable[[Call, Callable[[BaseModel], None]], None]) -> Response:
    """Return lines as work emits them; a client that goes away ends it."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def put(line: bytes | None) -> None:
        with suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(lines.put_nowait, line)

    def turn(call: Call) -> None:
        try:
            work(call, lambda found: put(_json(found) + b"\n"))
        except ClientGone:
            pass
        except Exception as error:
            message, _ = _told(error)
            put(_json(Failure(error=message)) + b"\n")
        finally:
            put(None)

    call, future = calls.submit(turn)

    async def body() -> AsyncIterator[bytes]:
        try:
            while (line := await lines.get()) is not None:
                yield line
        finally:
            call.cancel()
            future.cancel()

    return StreamingResponse(body(), media_type="application/x-ndjson")


def _told(error: Exception) -> tuple[str, int]:
    """Return what a client is told of an error, and the status."""
    match error:
        case BusyError():
            return str(error), 503
        case TimeLimitError():
            return str(error), 504
        case ConfigError() | DataError():
            return " ".join(str(error).split("\n")), 400
        case OstinatoError():
            return " ".join(str(error).split("\n")), 500
    if is_out_of_memory(error):
        return "out of memory: a shorter text takes less", 503
    _log.error("a request failed", exc_info=error)
    return "something went wrong here; the terminal says what", 500


async def _error(request: Request, error: Exception) -> Response:
    return _failure(*_told(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    names = {404: "there is no such page", 405: "this address does not take that method"}
    return _failure(names.get(error.status_code, error.detail), error.status_code)
