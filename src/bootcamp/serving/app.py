"""What the course's servers share beside the answering: flags, refusals, start and end.

A server listens on 127.0.0.1 alone. On TERM it drains: what has arrived is answered, nothing new is
taken, and it ends.
"""

import argparse
import asyncio
import logging
import socket

from aiohttp import web

from bootcamp.serving import protocol

SECONDS_TO_DRAIN = 4
MODEL = "the exported file, or the folder of its versions"


def flags(description: str, model: str = MODEL) -> argparse.ArgumentParser:
    """Make a parser with the flags of every server; model: what its argument is."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", help=model)
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    parser.add_argument("--body-seconds", type=float, default=5, help="for sending a request")
    parser.add_argument("--listening-fd", type=int, help=argparse.SUPPRESS)  # of service.py
    return parser


async def body(request: web.Request, args: argparse.Namespace) -> bytes:
    """Read what a client sends. Raises Refused if it takes too long or can't be read."""
    try:
        async with asyncio.timeout(args.body_seconds):
            return await request.read()
    except TimeoutError:
        raise protocol.Refused(408, f"no complete body after {args.body_seconds:g} s") from None
    except web.RequestPayloadError as error:  # such as compressed data that is none
        raise protocol.Refused(400, f"the body can't be read: {error}") from None


@web.middleware
async def refusals(request: web.Request, handler) -> web.StreamResponse:
    """Answer an error as the protocol has it: a status, and a sentence in JSON."""
    headers = {}
    try:
        return await handler(request)
    except protocol.Refused as refused:
        status, sentence = refused.status, str(refused)
        if status == 503:
            headers["Retry-After"] = "1"
    except web.HTTPException as refused:  # no such path, another method, too large
        status, sentence = refused.status, f"{request.method} {request.path}: {refused.reason}"
        headers = {name: text for name, text in refused.headers.items() if name == "Allow"}
    except Exception:  # whatever it is, the client gets an answer in the protocol's words
        logging.exception("%s %s", request.method, request.path)
        status, sentence = 500, "the server failed at this request"
    return web.json_response({"error": sentence}, status=status, headers=headers)


def application(routes: list[web.RouteDef]) -> web.Application:
    """Make an aiohttp application with these routes, which refuses in the protocol's words."""
    app = web.Application(client_max_size=protocol.LARGEST_BODY, middlewares=[refusals])
    app.add_routes(routes)
    return app


def run(app: web.Application, args: argparse.Namespace) -> None:
    """Serve until TERM or INT, then drain."""
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
        shutdown_timeout=SECONDS_TO_DRAIN,
        handler_cancellation=True,  # a client that has gone is not answered
    )
