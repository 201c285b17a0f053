// The C ABI of jobs and process sets, and of their memory.
#include <memory>
#include <mutex>
#include <utility>

#include "client-lib/src/api.h"
#include "client-lib/src/context.h"

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
    auto made = std::make_unique<tl_context>();
    made->own = std::make_unique<Context>(std::move(settings));
    made->session = made->own.get();
    made->set = made->session->everybody();
    TL_RETURN_IF_ERROR(made->session->join());
    *context = made.release();
    return {};
  });
}

tl_status_t tl_process_set(tl_context_t* context, const tl_process_set_config_t* config, tl_context_t** set) {
  return guarded([&]() -> Status {
    if (context == nullptr || config == nullptr || set == nullptr)
      return null_argument("tl_process_set", "a context, a description or a place for the set");
    *set = nullptr;
    TL_RETURN_IF_ERROR(context->session->usable());
    if (context->job != nullptr) {
      return Status(Code::kInvalidArgument, "tl_process_set was called with a process set", context->set->text(),
                    "make sets of the job's ranks with the context of tl_init");
    }
    tl_process_set_config_t known = TL_PROCESS_SET_INIT;
    TL_RETURN_IF_ERROR(read_struct(config, "TL_PROCESS_SET_INIT", &known));
    auto made = std::make_unique<tl_context>();
    made->session = context->session;
    made->job = context;
    TL_ASSIGN_OR_RETURN(made->set, context->session->make_set(known));
    std::lock_guard lock(context->mutex);
    for (const auto& [handle, other] : context->sets) {
      if (other->set->number() != known.number) continue;
      return Status(Code::kInvalidArgument, "there can be no such process set", other->set->text() + " has its number",
                    "use a number once");
    }
    *set = made.get();
    context->sets.emplace(made.get(), std::move(made));
    return {};
  });
}

tl_status_t tl_finalize(tl_context_t* context) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("tl_finalize", "a context");
    const bool is_set = context->job != nullptr;
    Status status = is_set ? context->session->leave_set(*context->set) : context->session->leave();
    // What the caller must do elsewhere leaves the context as it is.
    if (status.code() == Code::kInvalidArgument) return status;
    if (is_set) {
      std::unique_ptr<tl_context> gone;
      std::lock_guard lock(context->job->mutex);
      if (auto node = context->job->sets.extract(context); !node.empty()) gone = std::move(node.mapped());
      return status;
    }
    context->session->end_calls();
    delete context;
    return status;
  });
}

tl_status_t tl_abort(tl_context_t* context, const char* why) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("tl_abort", "a context");
    return context->session->abort(why != nullptr ? why : "this process has called tl_abort");
  });
}

int tl_rank(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->set->rank);
}
int tl_size(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->set->world_size);
}
int tl_local_rank(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->set->local_rank);
}
int tl_local_size(const tl_context_t* context) {
  return context == nullptr ? -1 : static_cast<int>(context->set->local_world_size);
}

const char* tl_host(const tl_context_t* context) {
  return context == nullptr ? nullptr : context->session->host();
}

tl_status_t tl_daemon_status(tl_context_t* context, const char** json) {
  return guarded([&]() -> Status {
    if (context == nullptr || json == nullptr)
      return null_argument("tl_daemon_status", "a context or a place for the text");
    TL_RETURN_IF_ERROR(context->session->usable());
    const Context::Running running(*context->session);
    TL_ASSIGN_OR_RETURN(*json, context->session->daemon_status());
    return {};
  });
}

tl_status_t tl_alloc(tl_context_t* context, size_t bytes, void** memory) {
  return guarded([&]() -> Status {
    if (context == nullptr || memory == nullptr)
      return null_argument("tl_alloc", "a context or a place for the memory");
    TL_RETURN_IF_ERROR(context->session->usable());
    const Context::Running running(*context->session);
    TL_ASSIGN_OR_RETURN(*memory, context->session->allocate(bytes));
    return {};
  });
}

tl_status_t tl_free(tl_context_t* context, void* memory) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument("tl_free", "a context");
    if (memory == nullptr) return {};
    TL_RETURN_IF_ERROR(context->session->usable());
    return context->session->release(memory);
  });
}

int tl_is_shared(const tl_context_t* context, const void* memory, size_t bytes) {
  return context != nullptr && context->session->is_shared(memory, bytes) ? 1 : 0;
}

}  // extern "C"
