"""python src/serve/simple_server.py logs/exported/gpt.onnx --port 8080

A server in a dozen lines: one process that answers requests one after another, each by itself.
"""

import web_app
from aiohttp import web

from bootcamp.serving import artifacts, protocol

args = web_app.make_parser(__doc__).parse_args()

# 1. Model
predict = artifacts.load(args.model)
limits = protocol.Limits(batch=8, context=artifacts.read_info(args.model).context)


# 2. Requests
async def infer(request):
    ids = protocol.read_ids(await web_app.read_body(request, args), limits)
    scores = predict(ids)
    return web.json_response(protocol.make_answer(scores))


async def ready(request):
    return web.Response()


# 3. Server
routes = [web.post(protocol.INFER, infer), web.get(protocol.READY, ready)]
web_app.serve(routes, args)
