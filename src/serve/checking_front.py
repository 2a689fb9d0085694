"""python src/serve/checking_front.py http://127.0.0.1:8000 --context 64

A front for a server that must meet no bad request: it checks each, and passes the good ones on.
"""

import aiohttp
import web_app
from aiohttp import web

from bootcamp.serving import protocol

flags = web_app.make_parser(
    __doc__, model="address of the server behind, such as http://127.0.0.1:8000"
)
flags.add_argument("--context", type=int, required=True, help="bytes of the longest sample")
flags.add_argument("--max-batch", type=int, default=8, help="samples of the largest request")
args = flags.parse_args()

# 1. Model
behind = aiohttp.web.AppKey("behind", aiohttp.ClientSession)
limits = protocol.Limits(batch=args.max_batch, context=args.context)


# 2. Requests
async def infer(request):
    ids = protocol.read_ids(await web_app.read_body(request, args), limits)
    asked = protocol.make_request(ids)
    try:
        async with request.app[behind].post(protocol.INFER, json=asked) as answer:
            if answer.status == 200:
                return web.Response(body=await answer.read(), content_type="application/json")
            why = f"status {answer.status}"
    except (aiohttp.ClientError, TimeoutError) as error:
        why = str(error) or type(error).__name__
    raise protocol.Refused(503, f"the server behind did not answer ({why}): send it again")


async def ready(request):
    try:
        async with request.app[behind].get(protocol.MODEL_READY) as answer:
            return web.Response(status=answer.status)
    except (aiohttp.ClientError, TimeoutError):
        return web.Response(status=503)


# 3. Server
async def with_session(application):
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(args.model, connector=connector) as session:
        application[behind] = session
        yield


routes = [web.post(protocol.INFER, infer), web.get(protocol.READY, ready)]
web_app.serve(routes, args, with_session)
