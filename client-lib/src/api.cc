// The C ABI: checks pointers, keeps exceptions in, and turns Status into numbers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "client-lib/src/context.h"
#include "client-lib/src/error.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::client {
namespace {

static_assert(static_cast<int>(Code::kInternal) == TL_ERROR_INTERNAL &&
              static_cast<int>(Code::kInProgress) == TL_IN_PROGRESS);
static_assert(static_cast<int>(Dtype::kBfloat16) == TL_BFLOAT16 && static_cast<int>(Operation::kBarrier) == TL_BARRIER);

template <typename Function>
tl_status_t guarded(Function&& function) noexcept {
  try {
    return report(function());
  } catch (const std::bad_alloc&) {
    return report(Status(Code::kResourceExhausted, "out of memory"));
  } catch (const std::exception& e) {
    return report(Status(Code::kInternal, "an unexpected exception", e.what()));
  }
}

Status null_argument(const char* function, const char* argument) {
  return Status(Code::kInvalidArgument, std::string(function) + " was called without " + argument, "", "pass it");
}

// Where a struct of the program is older and shorter than ours, the rest keeps its defaults.
template <typename T>
Status read_struct(const T* given, const char* init, T* into) {
  if (given == nullptr) return {};
  if (given->size < sizeof given->size || given->size > 4096) {
    return Status(Code::kInvalidArgument, "a struct of the wrong size", "its size is " + std::to_string(given->size),
                  std::string("initialise it with ") + init);
  }
  std::memcpy(into, given, std::min(given->size, sizeof *into));
  return {};
}

// Into *request; checks what all array calls have in common.
tl_status_t array_call(const char* function, tl_context_t* context, const char* name, ArrayCall call,
                       const tl_options_t* options, tl_request_t** request) noexcept {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument(function, "a context");
    if (name == nullptr) return null_argument(function, "a name");
    if (request == nullptr) return null_argument(function, "a place for the request");
    if (call.out == nullptr) return null_argument(function, "a buffer");
    if (static_cast<unsigned>(call.dtype) > TL_BFLOAT16 || static_cast<unsigned>(call.reduce) > TL_AVERAGE) {
      return Status(Code::kInvalidArgument, std::string(function) + " was called with an unknown dtype or op",
                    std::string("'") + name + "'", "use a tl_dtype_t and a tl_op_t");
    }
    tl_options_t known = TL_OPTIONS_INIT;
    TL_RETURN_IF_ERROR(read_struct(options, "TL_OPTIONS_INIT", &known));
    if (std::isnan(known.urgency) || known.urgency > 1) {
      return Status(Code::kInvalidArgument, std::string(function) + " was called with an impossible urgency",
                    std::to_string(known.urgency), "use [0, 1], or a negative number for 0.5");
    }
    call.urgency = known.urgency;
    TL_ASSIGN_OR_RETURN(*request, context->array(name, call));
    return {};
  });
}

// From the C numbers; what is out of range stays out of range and is refused by array_call().
Dtype dtype_of(const tl_dtype_t& dtype) {
  return static_cast<Dtype>(std::min(raw_number(dtype), 0xffU));
}
ReduceOp reduce_of(const tl_op_t& op) {
  return static_cast<ReduceOp>(std::min(raw_number(op), 0xffU));
}

}  // namespace
}  // namespace tensorlane::client

using namespace tensorlane;
using namespace tensorlane::client;

extern "C" {

const char* tl_status_string(tl_status_t status) {
  return code_name(static_cast<Code>(raw_number(status)));
}
const char* tl_last_error(void) {
  return last_error();
}

tl_status_t tl_init(const tl_config_t* config, tl_context_t** context) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("tl_init", "a place for the context");
    *context = nullptr;
    TL_ASSIGN_OR_RETURN(Settings settings, resolve(config));
    auto made = std::make_unique<tl_context>(std::move(settings));
    TL_RETURN_IF_ERROR(made->join());
    *context = made.release();
    return {};
  });
}

tl_status_t tl_finalize(tl_context_t* context) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("tl_finalize", "a context");
    Status status = context->leave();
    // What the caller must do elsewhere leaves the context as it is.
    if (status.code() != Code::kInvalidArgument) delete context;
    return status;
  });
}

int tl_rank(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->settings().rank);
}
int tl_size(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->settings().world_size);
}
int tl_local_rank(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->settings().local_rank);
}
int tl_local_size(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->settings().local_world_size);
}

tl_status_t tl_daemon_status(tl_context_t* context, const char** json) {
  return guarded([&]() -> Status {
    if (context == nullptr || json == nullptr)
      return null_argument("tl_daemon_status", "a context or a place for the text");
    TL_RETURN_IF_ERROR(context->usable());
    TL_ASSIGN_OR_RETURN(*json, context->daemon_status());
    return {};
  });
}

tl_status_t tl_alloc(tl_context_t* context, size_t bytes, void** memory) {
  return guarded([&]() -> Status {
    if (context == nullptr || memory == nullptr)
      return null_argument("tl_alloc", "a context or a place for the memory");
    TL_RETURN_IF_ERROR(context->usable());
    TL_ASSIGN_OR_RETURN(*memory, context->allocate(bytes));
    return {};
  });
}

tl_status_t tl_free(tl_context_t* context, void* memory) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("tl_free", "a context");
    if (memory == nullptr) return {};
    TL_RETURN_IF_ERROR(context->usable());
    return context->release(memory);
  });
}

int tl_is_shared(const tl_context_t* context, const void* memory, size_t bytes) {
  return context != nullptr && context->is_shared(memory, bytes) ? 1 : 0;
}

tl_status_t tl_register(tl_context_t* context, const char* group, const tl_tensor_desc_t* descs, size_t count,
                        tl_tensor_t** tensors) {
  return guarded([&]() -> Status {
    if (context == nullptr || group == nullptr || descs == nullptr || tensors == nullptr) {
      return null_argument("tl_register", "a context, a group's name, descriptions or a place for the tensors");
    }
    if (count == 0)
      return Status(Code::kInvalidArgument, "a group without tensors", std::string("'") + group + "'",
                    "register at least one");
    std::vector<tl_tensor_desc_t> known(count, tl_tensor_desc_t TL_TENSOR_INIT);
    const auto* next = reinterpret_cast<const char*>(descs);  // an older program's structs may be shorter than ours
    for (tl_tensor_desc_t& desc : known) {
      TL_RETURN_IF_ERROR(read_struct(reinterpret_cast<const tl_tensor_desc_t*>(next), "TL_TENSOR_INIT", &desc));
      next += descs->size;
    }
    return context->register_group(group, known, tensors);
  });
}

void* tl_tensor_buffer(const tl_tensor_t* tensor) {
  return tensor == nullptr ? nullptr : tensor->buffer;
}

tl_status_t tl_post(tl_tensor_t* tensor, tl_request_t** request) {
  return guarded([&]() -> Status {
    if (tensor == nullptr || request == nullptr) return null_argument("tl_post", "a tensor or a place for the request");
    TL_ASSIGN_OR_RETURN(*request, tensor->context->post(*tensor));
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

tl_status_t tl_set_callback(tl_request_t* request, tl_callback_t function, void* argument) {
  return guarded([&]() -> Status {
    if (request == nullptr || function == nullptr) return null_argument("tl_set_callback", "a request or a function");
    return request->context->set_callback(*request, function, argument);
  });
}

tl_status_t tl_allreduce(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                         tl_dtype_t dtype, tl_op_t op, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_allreduce", "an input"));
  ArrayCall call{Operation::kAllreduce, count, dtype_of(dtype), reduce_of(op), 0, in, out};
  call.in_bytes = count * dtype_size(call.dtype);
  return array_call("tl_allreduce", context, name, call, options, request);
}

tl_status_t tl_broadcast(tl_context_t* context, const char* name, void* buffer, uint64_t count, tl_dtype_t dtype,
                         int root, const tl_options_t* options, tl_request_t** request) {
  if (context != nullptr && (root < 0 || root >= tl_size(context))) {
    return report(Status(Code::kInvalidArgument, "tl_broadcast was called with an impossible root",
                         std::to_string(root), "use a rank below the world size " + std::to_string(tl_size(context))));
  }
  ArrayCall call{
      Operation::kBroadcast, count, dtype_of(dtype), ReduceOp::kSum, static_cast<std::uint32_t>(root), buffer, buffer};
  call.in_bytes = count * dtype_size(call.dtype);
  return array_call("tl_broadcast", context, name, call, options, request);
}

tl_status_t tl_allgather(tl_context_t* context, const char* name, const void* in, void* out, uint64_t count,
                         tl_dtype_t dtype, const tl_options_t* options, tl_request_t** request) {
  if (in == nullptr) return report(null_argument("tl_allgather", "an input"));
  if (context == nullptr) return report(null_argument("tl_allgather", "a context"));
  const std::uint64_t ranks = context->settings().world_size;
  // Too large to multiply is too large anyhow.
  const std::uint64_t elements = count > protocol::kMaxElements ? count : count * ranks;
  ArrayCall call{Operation::kAllgather, elements, dtype_of(dtype), ReduceOp::kSum, 0, in, out};
  call.in_bytes = count * dtype_size(call.dtype);
  call.in_offset = context->settings().rank * call.in_bytes;
  return array_call("tl_allgather", context, name, call, options, request);
}

tl_status_t tl_barrier(tl_context_t* context, double timeout_seconds) {
  return guarded([&]() -> Status {
    return context == nullptr ? null_argument("tl_barrier", "a context") : context->barrier(timeout_seconds);
  });
}

}  // extern "C"
