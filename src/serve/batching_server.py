"""python src/serve/batching_server.py logs/exported/gpt --instances 2 --max-batch 8 --delay-ms 2

A server that batches: instances in processes of their own answer what waits in one queue together.
The model is a folder of versions, gpt/1/, gpt/2/, of which it serves the newest until it is asked
for another: POST /v2/repository/models/gpt/load?version=1
"""

import web_app
from aiohttp import web

from bootcamp.serving import artifacts, batcher, protocol, versions
from bootcamp.serving.instance import BadModel

flags = web_app.make_parser(__doc__)
flags.add_argument("--instances", type=int, default=1, help="processes with a model each")
flags.add_argument("--max-batch", type=int, default=8, help="samples that are answered together")
flags.add_argument("--delay-ms", type=float, default=2.0, help="how long the first waits for more")
flags.add_argument("--queue", type=int, default=64, help="requests that may wait")
args = flags.parse_args()

# 1. Model
predict = batcher.Batcher(args.max_batch, args.delay_ms / 1000, args.queue)
newest = versions.find_file(args.model)
limits = protocol.Limits(batch=args.max_batch, context=artifacts.read_info(newest).context)


# 2. Requests
async def infer(request):
    ids = protocol.read_ids(await web_app.read_body(request, args), limits)
    scores = await predict(ids)
    return web.json_response(protocol.make_answer(scores))


async def ready(request):
    return web.Response(status=200 if predict.ready else 503)


async def load(request):
    try:
        version = int(request.query.get("version", versions.list_versions(args.model)[-1]))
        await predict.load(versions.find_file(args.model, version), args.instances)
    except (BadModel, FileNotFoundError, ValueError) as error:
        raise protocol.Refused(400, str(error)) from None
    return web.Response()


async def metrics(request):
    return web.json_response(predict.counts)


# 3. Server
async def with_instances(_):
    await predict.load(newest, args.instances)
    yield
    await predict.stop()  # all requests have been answered


routes = [web.post(protocol.INFER, infer), web.get(protocol.READY, ready)]
routes += [web.post(protocol.LOAD, load), web.get("/metrics", metrics)]
web_app.serve(routes, args, with_instances)
