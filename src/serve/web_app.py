"""The web application that the course's servers share: flags, errors, start and end.

A server listens on 127.0.0.1 alone. On TERM it answers what has arrived, and ends.
"""

import argparse
import asyncio
import logging
import socket
from collections.abc import Callable

from aiohttp import web

from bootcamp.serving import protocol


def make_parser(
    description: str, model: str = "the exported file, or the folder of its versions"
) -> argparse.ArgumentParser:
    """Make a parser with every server's flags. model: help text of the argument `model`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", help=model)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument(
        "--body-seconds", type=float, default=5, help="time limit for receiving a request's body"
    )
    parser.add_argument("--listening-fd", type=int, help=argparse.SUPPRESS)
    return parser


async def read_body(request: web.Request, args: argparse.Namespace) -> bytes:
    """Read a request's body. Raises Refused if it takes too long or can't be read."""
    try:
        async with asyncio.timeout(args.body_seconds):
            return await request.read()
    except TimeoutError:
        raise protocol.Refused(408, f"no complete body after {args.body_seconds:g} s") from None
    except web.RequestPayloadError as error:  # such as a broken gzip body
        raise protocol.Refused(400, f"the body can't be read: {error}") from None


@web.middleware
async def answer_errors(request: web.Request, handler) -> web.StreamResponse:
    """Turn an error of a handler into the protocol's answer: a status, and a sentence in JSON."""
    headers = {}
    try:
        return await handler(request)
    except protocol.Refused as refused:
        status, sentence = refused.status, str(refused)
        if status == 503:
            headers["Retry-After"] = "1"
    except web.HTTPException as refused:  # unknown path, wrong method, body too large
        status, sentence = refused.status, f"{request.method} {request.path}: {refused.reason}"
        headers = {name: text for name, text in refused.headers.items() if name == "Allow"}
    except Exception:  # whatever it is, the client gets an answer
        logging.exception("%s %s", request.method, request.path)
        status, sentence = 500, "the server failed at this request"
    return web.json_response({"error": sentence}, status=status, headers=headers)


def serve(routes: list[web.RouteDef], args: argparse.Namespace, *contexts: Callable) -> None:
    """Serve these routes until TERM or INT, then drain. contexts: of aiohttp's cleanup_ctx."""
    app = web.Application(client_max_size=protocol.LARGEST_BODY, middlewares=[answer_errors])
    app.add_routes(routes)
    app.cleanup_ctx.extend(contexts)
    if args.listening_fd is None:
        listening, announce = socket.create_server(("127.0.0.1", args.port)), print
    else:
        listening, announce = socket.socket(fileno=args.listening_fd), None
    web.run_app(
        app,
        sock=listening,
        backlog=1024,
        print=announce,
        access_log=None,
        shutdown_timeout=4,
        handler_cancellation=True,  # stop work for a client that disconnected
    )
