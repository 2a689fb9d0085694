"""python src/serve/simple.py logs/exported/gpt.onnx --port 8080

A server in a dozen lines: one process that answers requests one after another, each by itself.
"""

from aiohttp import web

from bootcamp.serving import app, artifacts, protocol

args = app.flags(__doc__).parse_args()

# 1. Model
predict = artifacts.load(args.model)
limits = protocol.Limits(batch=8, context=artifacts.about(args.model).context)


# 2. Requests
async def infer(request):
    ids = protocol.ids_of(await app.body(request, args), limits)
    scores = predict(ids)
    return web.json_response(protocol.answer(scores))


async def ready(request):
    return web.Response()


# 3. Server
routes = [web.post(protocol.path(), infer), web.get(protocol.READY, ready)]
app.run(app.application(routes), args)
