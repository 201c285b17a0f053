"""One rank that registers two small tensors together, submits one, and waits for it: prints the error that ends that."""

import tensorlane
from tensorlane import _native

tensorlane.init()
context = _native.context()
tensors = context.register("pair", [_native.tensor_desc(name, 100, _native.FLOAT32) for name in ("submitted", "left_out")])
for tensor in tensors:
    tensor.memory(400)
try:
    context.wait_many(context.post_many([tensors[0]]))
    raise SystemExit("the wait returned")
except tensorlane.Error as error:
    print(error)
