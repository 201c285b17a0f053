// The C ABI: checks pointers, keeps exceptions in, and turns Status into numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "client-lib/src/api.h"
#include "client-lib/src/context.h"
#include "client-lib/src/error.h"
#include "common/base/hash.h"
#include "common/protocol/plan.h"
#include "common/protocol/rank_block.h"
#include "common/protocol/session.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {
namespace {

static_assert(static_cast<int>(Code::kInternal) == TL_ERROR_INTERNAL &&
              static_cast<int>(Code::kInProgress) == TL_IN_PROGRESS);
static_assert(static_cast<int>(Dtype::kUint8) == TL_UINT8 && kDtypeCount == TL_UINT8 + 1);
static_assert(static_cast<int>(ReduceOp::kProduct) == TL_PRODUCT && kReduceOpCount == TL_PRODUCT + 1);
static_assert(static_cast<int>(Operation::kBarrier) == TL_BARRIER);
static_assert(static_cast<int>(Operation::kPush) == TL_PUSH && static_cast<int>(Operation::kPull) == TL_PULL);
static_assert(static_cast<int>(Operation::kReduceScatter) == TL_REDUCESCATTER);
static_assert(static_cast<int>(Operation::kReduce) == TL_REDUCE && static_cast<int>(Operation::kGather) == TL_GATHER);
static_assert(static_cast<int>(Operation::kScatter) == TL_SCATTER &&
              static_cast<int>(Operation::kAlltoall) == TL_ALLTOALL && kLastOperation == Operation::kAlltoall);
static_assert(static_cast<int>(protocol::Pattern::kRing) + 1 == TL_PATTERN_RING &&
              static_cast<int>(protocol::Pattern::kParameterServer) + 1 == TL_PATTERN_PARAMETER_SERVER &&
              static_cast<int>(protocol::Pattern::kHalvingDoubling) + 1 == TL_PATTERN_HALVING_DOUBLING &&
              static_cast<int>(protocol::Pattern::kTree) + 1 == TL_PATTERN_TREE);
static_assert(protocol::kDaemonsPattern == TL_PATTERN_DEFAULT && protocol::kAutomaticPattern == TL_PATTERN_AUTO);

// Into *request; checks what all array calls have in common.
tl_status_t array_call(const char* function, tl_context_t* context, const char* name, ArrayCall call,
                       const tl_options_t* options, tl_request_t** request) noexcept {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument(function, "a context");
    if (name == nullptr) return null_argument(function, "a name");
    if (request == nullptr) return null_argument(function, "a place for the request");
    if (call.out == nullptr && (call.out_bytes > 0 || call.elements == 0)) return null_argument(function, "a buffer");
    if (static_cast<unsigned>(call.dtype) >= kDtypeCount || static_cast<unsigned>(call.reduce) >= kReduceOpCount) {
      return Status(Code::kInvalidArgument, std::string(function) + " was called with an unknown dtype or op",
                    std::string("'") + name + "'", "use a tl_dtype_t and a tl_op_t");
    }
    if (!can_reduce(call.reduce, call.dtype)) {
      return Status(Code::kInvalidArgument,
                    std::string("the average of ") + dtype_name(call.dtype) + " is no " + dtype_name(call.dtype),
                    std::string(function) + " of '" + name + "'", "use TL_SUM, and divide");
    }
    tl_options_t known = TL_OPTIONS_INIT;
    TL_RETURN_IF_ERROR(read_struct(options, "TL_OPTIONS_INIT", &known));
    if (std::isnan(known.urgency) || known.urgency > 1) {
      return Status(Code::kInvalidArgument, std::string(function) + " was called with an impossible urgency",
                    std::to_string(known.urgency), "use [0, 1], or a negative number for 0.5");
    }
    if (raw_number(known.memory) > TL_MEMORY_CUDA) {
      return Status(Code::kInvalidArgument, std::string(function) + " was called with an unknown memory",
                    std::to_string(raw_number(known.memory)), "use a tl_memory_t");
    }
    call.set = context->set;
    call.urgency = known.urgency;
    call.queued = known.queued != 0;
    call.memory = known.memory;
    call.stream = known.stream;
    TL_ASSIGN_OR_RETURN(*request, context->session->array(name, call));
    return {};
  });
}

// From the C number, as dtype_of() of api.h.
ReduceOp reduce_of(const tl_op_t& op) {
  return static_cast<ReduceOp>(std::min(raw_number(op), 0xffU));
}

// Of calls with a root rank.
Status check_root(const char* function, const tl_context_t* context, int root) {
  if (context == nullptr) return null_argument(function, "a context");
  if (root >= 0 && root < tl_size(context)) return {};
  return Status(Code::kInvalidArgument, std::string(function) + " was called with an impossible root",
                std::to_string(root), "use a rank below the world size " + std::to_string(tl_size(context)));
}

// The elements of `count` for each of so many parts. What is too large to multiply is too large anyhow.
std::uint64_t elements_of(std::uint64_t count, std::uint64_t parts) {
  return count > protocol::kMaxElements ? count : count * parts;
}

// A gather or a scatter of parts of `count` elements, without its buffers.
ArrayCall rooted_call(Operation operation, const tl_context_t& context, std::uint64_t count, tl_dtype_t dtype,
                      int root) {
  ArrayCall call{
      .operation = operation, .elements = elements_of(count, context.set->world_size), .dtype = dtype_of(dtype)};
  call.root = static_cast<std::uint32_t>(root);
  return call;
}

// The rank whose host has the first part of a key's value: keys are spread, and a push and a pull of one agree.
std::uint32_t root_of(const tl_context_t* context, const char* key) {
  if (context == nullptr || key == nullptr) return 0;
  return static_cast<std::uint32_t>(fnv1a(key) % context->set->world_size);
}

}  // namespace
}  // namespace tensorlane::client

using namespace tensorlane;
using namespace tensorlane::client;

extern "C" {

tl_status_t tl_unregister(tl_context_t* context, const char* group) {
  return guarded([&]() -> Status {
    if (context == nullptr || group == nullptr) return null_argument("tl_unregister", "a context or a group's name");
    TL_RETURN_IF_ERROR(context->session->usable());  // the child of a fork waits for no lock of its parent's
    const Context::Running running(*context->session);
    return context->session->unregister_group(*context->set, group);
  });
}

tl_status_t tl_gpu_alloc(tl_context_t* context, int device, size_t bytes, void** memory) {
  return guarded([&]() -> Status {
    if (context == nullptr || memory == nullptr)
      return null_argument("tl_gpu_alloc", "a context or a place for the memory");
    TL_RETURN_IF_ERROR(context->session->usable());
    const Context::Running running(*context->session);
    if (device < 0 || bytes == 0) {
      return Status(Code::kInvalidArgument, "there can be no such memory of a GPU",
                    std::to_string(bytes) + " bytes on device " + std::to_string(device),
                    "ask for at least a byte, of a device from 0");
    }
    TL_ASSIGN_OR_RETURN(*memory, context->session->allocate_on_gpu(device, bytes));
    return {};
  });
}

tl_status_t tl_gpu_free(tl_context_t* context, void* memory) {
  return guarded([&]() -> Status {
    if (memory == nullptr) return {};
    if (context == nullptr) return Context::free_later(memory);
    TL_RETURN_IF_ERROR(context->session->usable());
    const Context::Running running(*context->session);
    return context->session->release_on_gpu(memory);
  });
}

tl_status_t tl_register(tl_context_t* context, const char* group, const tl_tensor_desc_t* descs, size_t count,
                        tl_tensor_t** tensors) {
  return guarded([&]() -> Status {
    if (context == nullptr || group == nullptr || descs == nullptr || tensors == nullptr) {
      return null_argument("tl_register", "a context, a group's name, descriptions or a place for the tensors");
    }
    TL_RETURN_IF_ERROR(context->session->usable());
    const Context::Running running(*context->session);
    if (count == 0)
      return Status(Code::kInvalidArgument, "a group without tensors", std::string("'") + group + "'",
                    "register at least one");
    std::vector<tl_tensor_desc_t> known(count, tl_tensor_desc_t TL_TENSOR_INIT);
    const auto* next = reinterpret_cast<const char*>(descs);  // an older program's structs may be shorter than ours
    for (tl_tensor_desc_t& desc : known) {
      TL_RETURN_IF_ERROR(read_struct(reinterpret_cast<const tl_tensor_desc_t*>(next), "TL_TENSOR_INIT", &desc));
      next += descs->size;
    }
    return context->session->register_group(context->set, group, known, tensors);
  });
}

void* tl_tensor_buffer(const tl_tensor_t* tensor) {
  if (tensor == nullptr) return nullptr;
  return tensor->gpu_buffer != nullptr ? tensor->gpu_buffer : tensor->buffer;
}

tl_status_t tl_post(tl_tensor_t* tensor, tl_request_t** request) {
  return guarded([&]() -> Status {
    if (tensor == nullptr || request == nullptr) return null_argument("tl_post", "a tensor or a place for the request");
    TL_ASSIGN_OR_RETURN(*request, tensor->context->post(*tensor));
    return {};
  });
}

tl_status_t tl_post_many(tl_tensor_t* const* tensors, size_t count, tl_request_t** requests) {
  return tl_post_on(tensors, count, nullptr, requests);
}

tl_status_t tl_post_on(tl_tensor_t* const* tensors, size_t count, void* stream, tl_request_t** requests) {
  return guarded([&]() -> Status {
    if (count == 0) return {};
    if (tensors == nullptr || requests == nullptr)
      return null_argument("tl_post_many", "tensors or a place for the requests");
    const std::span<tl_tensor_t* const> all(tensors, count);
    for (const tl_tensor_t* tensor : all) {
      if (tensor == nullptr) return null_argument("tl_post_many", "one of the tensors");
      if (tensor->context != all.front()->context) {
        return Status(Code::kInvalidArgument, "tl_post_many was called with tensors of several contexts",
                      "'" + all.front()->name + "' and '" + tensor->name + "'", "make a call for each context");
      }
    }
    return all.front()->context->post_many(all, stream, requests);
  });
}

tl_status_t tl_stream_wait(tl_request_t** requests, size_t count, void* stream) {
  return guarded([&]() -> Status {
    if (count == 0) return {};
    if (requests == nullptr) return null_argument("tl_stream_wait", "requests");
    const std::span<tl_request_t*> all(requests, count);
    const auto first = std::ranges::find_if(all, [](const tl_request* request) { return request != nullptr; });
    if (first == all.end()) return {};
    Context* const context = (*first)->context;
    for (const tl_request_t* request : all) {
      if (request != nullptr && request->context != context)
        return Status(Code::kInvalidArgument, "tl_stream_wait was called with requests of several contexts", "",
                      "make a call for each context");
    }
    return context->stream_wait(all, stream);
  });
}

tl_status_t tl_gpu_status(tl_context_t* context, const char** json) {
  return guarded([&]() -> Status {
    if (context == nullptr || json == nullptr)
      return null_argument("tl_gpu_status", "a context or a place for the text");
    *json = context->session->gpu_status();
    return {};
  });
}

tl_status_t tl_test(tl_request_t* request) {
  return guarded([&]() -> Status {
    return request == nullptr ? null_argument("tl_test", "a request") : request->context->test(*request);
  });
}

tl_status_t tl_wait(tl_request_t* request, double timeout_seconds) {
  return guarded([&]() -> Status {
    return request == nullptr ? null_argument("tl_wait", "a request")
                              : request->context->wait(*request, timeout_seconds);
  });
}

tl_status_t tl_wait_many(tl_request_t** requests, size_t count, double timeout_seconds) {
  return guarded([&]() -> Status {
    if (count == 0) return {};
    if (requests == nullptr) return null_argument("tl_wait_many", "requests");
    const bool forever = !(timeout_seconds >= 0);
    const Time start = now();
    Status first, timed_out;
    for (tl_request_t*& request : std::span(requests, count)) {
      if (request == nullptr) continue;
      const double left = forever ? -1 : std::max(0.0, timeout_seconds - to_seconds(now() - start));
      const Status status = request->context->wait(*request, left);
      if (status.code() == Code::kTimedOut) {  // of a request that failed, wait() says "aborted"
        if (timed_out.ok()) timed_out = request->context->not_done(*request, timeout_seconds);
        continue;  // those behind it may be done
      }
      request = nullptr;
      if (first.ok()) first = status;
    }
    return first.ok() ? timed_out : first;
  });
}

tl_status_t tl_set_callback(tl_request_t* request, tl_callback_t function, void* argument) {
  return guarded([&]() -> Status {
    if (request == nullptr || function == nullptr) return null_argument("tl_set_callback", "a request or a function");
    return request->context->set_callback(*request, function, argument);
  });
}

tl_status_t tl_allreduce(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                         tl_dtype_t dtype, tl_op_t op, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_allreduce", "an input"));
  ArrayCall call{.operation = Operation::kAllreduce, .elements = count, .dtype = dtype_of(dtype)};
  call.reduce = reduce_of(op);
  call.in = in;
  call.out = out;
  call.in_bytes = call.out_bytes = count * dtype_size(call.dtype);
  return array_call("tl_allreduce", context, name, call, options, request);
}

tl_status_t tl_broadcast(tl_context_t* context, const char* name, void* buffer, uint64_t count, tl_dtype_t dtype,
                         int root, const tl_options_t* options, tl_request_t** request) {
  if (const Status status = check_root("tl_broadcast", context, root); !status.ok()) return report(status);
  ArrayCall call{.operation = Operation::kBroadcast, .elements = count, .dtype = dtype_of(dtype)};
  call.root = static_cast<std::uint32_t>(root);
  call.in = call.out = buffer;
  call.in_bytes = call.out_bytes = count * dtype_size(call.dtype);
  return array_call("tl_broadcast", context, name, call, options, request);
}

tl_status_t tl_allgather(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                         tl_dtype_t dtype, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_allgather", "an input"));
  if (context == nullptr) return report(null_argument("tl_allgather", "a context"));
  const std::uint64_t ranks = context->set->world_size;
  const std::uint64_t elements = elements_of(count, ranks);
  ArrayCall call{.operation = Operation::kAllgather, .elements = elements, .dtype = dtype_of(dtype)};
  call.in = in;
  call.out = out;
  call.out_bytes = elements * dtype_size(call.dtype);
  call.in_bytes = count * dtype_size(call.dtype);
  call.in_offset = context->set->rank * call.in_bytes;
  return array_call("tl_allgather", context, name, call, options, request);
}

tl_status_t tl_reducescatter(tl_context_t* context, const char* name, const void* in, void* out, uint64_t rows,
                             uint64_t row, tl_dtype_t dtype, tl_op_t op, const tl_options_t* options,
                             tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_reducescatter", "an input"));
  if (context == nullptr) return report(null_argument("tl_reducescatter", "a context"));
  if (row == 0 || row > protocol::kMaxElements || rows > protocol::kMaxElements / row) {
    return report(Status(Code::kInvalidArgument, "tl_reducescatter was called with impossible rows",
                         std::to_string(rows) + " rows of " + std::to_string(row) + " elements",
                         "use 1 to " + std::to_string(protocol::kMaxElements) + " elements"));
  }
  ArrayCall call{.operation = Operation::kReduceScatter, .elements = rows * row, .row = row, .dtype = dtype_of(dtype)};
  call.reduce = reduce_of(op);
  call.in = in;
  call.out = out;
  const std::uint64_t size = dtype_size(call.dtype);
  const auto block = protocol::rank_block(call.elements, row, context->set->world_size, context->set->rank);
  call.in_bytes = call.elements * size;
  call.out_offset = block.offset * size;
  call.out_bytes = block.elements * size;
  return array_call("tl_reducescatter", context, name, call, options, request);
}

tl_status_t tl_reduce(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                      tl_dtype_t dtype, tl_op_t op, int root, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_reduce", "an input"));
  if (const Status status = check_root("tl_reduce", context, root); !status.ok()) return report(status);
  ArrayCall call{.operation = Operation::kReduce, .elements = count, .dtype = dtype_of(dtype)};
  call.reduce = reduce_of(op);
  call.root = static_cast<std::uint32_t>(root);
  call.in = in;
  call.in_bytes = count * dtype_size(call.dtype);
  if (tl_rank(context) == root) {
    call.out = out;
    call.out_bytes = call.in_bytes;
  }
  return array_call("tl_reduce", context, name, call, options, request);
}

tl_status_t tl_gather(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                      tl_dtype_t dtype, int root, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_gather", "an input"));
  if (const Status status = check_root("tl_gather", context, root); !status.ok()) return report(status);
  ArrayCall call = rooted_call(Operation::kGather, *context, count, dtype, root);
  call.in = in;
  call.in_bytes = count * dtype_size(call.dtype);
  if (tl_rank(context) == root) {
    call.in_offset = call.root * call.in_bytes;
    call.out = out;
    call.out_bytes = call.elements * dtype_size(call.dtype);
  }
  return array_call("tl_gather", context, name, call, options, request);
}

tl_status_t tl_scatter(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                       tl_dtype_t dtype, int root, const tl_options_t* options, tl_request_t** request) {
  if (const Status status = check_root("tl_scatter", context, root); !status.ok()) return report(status);
  ArrayCall call = rooted_call(Operation::kScatter, *context, count, dtype, root);
  call.out = out;
  call.out_bytes = count * dtype_size(call.dtype);
  if (tl_rank(context) == root) {
    if (in == nullptr) return report(null_argument("tl_scatter", "an input on the root"));
    call.in = in;
    call.in_bytes = call.elements * dtype_size(call.dtype);
    call.out_offset = call.root * call.out_bytes;
  }
  return array_call("tl_scatter", context, name, call, options, request);
}

tl_status_t tl_alltoall(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                        tl_dtype_t dtype, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_alltoall", "an input"));
  if (context == nullptr) return report(null_argument("tl_alltoall", "a context"));
  const std::uint64_t ranks = context->set->world_size;
  ArrayCall call{
      .operation = Operation::kAlltoall, .elements = elements_of(count, 2 * ranks), .dtype = dtype_of(dtype)};
  call.in = in;
  call.out = out;
  call.in_bytes = call.out_bytes = call.out_offset = count * ranks * dtype_size(call.dtype);
  return array_call("tl_alltoall", context, name, call, options, request);
}

tl_status_t tl_push(tl_context_t* context, const char* key, const void* in, uint64_t count, tl_dtype_t dtype,
                    tl_op_t op, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_push", "an input"));
  ArrayCall call{.operation = Operation::kPush, .elements = count, .dtype = dtype_of(dtype)};
  call.reduce = reduce_of(op);
  call.root = root_of(context, key);
  call.in = in;
  call.in_bytes = count * dtype_size(call.dtype);
  return array_call("tl_push", context, key, call, options, request);
}

tl_status_t tl_pull(tl_context_t* context, const char* key, void* out, uint64_t count, tl_dtype_t dtype,
                    const tl_options_t* options, tl_request_t** request) {
  ArrayCall call{.operation = Operation::kPull, .elements = count, .dtype = dtype_of(dtype)};
  call.root = root_of(context, key);
  call.out = out;
  call.out_bytes = count * dtype_size(call.dtype);
  return array_call("tl_pull", context, key, call, options, request);
}

tl_status_t tl_barrier(tl_context_t* context, double timeout_seconds) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("tl_barrier", "a context");
    TL_RETURN_IF_ERROR(context->session->usable());
    const Context::Running running(*context->session);
    return context->session->barrier(context->set, timeout_seconds);
  });
}

}  // extern "C"
