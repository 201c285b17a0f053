// The C ABI of messages, and of the all-to-all that is made of them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>

#include "client-lib/src/api.h"
#include "client-lib/src/context.h"
#include "common/protocol/session.h"

namespace tensorlane::client {
namespace {

constexpr float kUrgency = 0.9f;  // somebody waits for it

Status impossible(const char* function, const char* what, const std::string& value, const std::string& fix) {
  return {Code::kInvalidArgument, std::string(function) + " was called with an impossible " + what, value, fix};
}

Status check_kind(const char* function, std::uint64_t count, Dtype dtype) {
  if (count > protocol::kMaxElements)
    return impossible(function, "count", std::to_string(count),
                      "use at most " + std::to_string(protocol::kMaxElements));
  if (static_cast<unsigned>(dtype) >= kDtypeCount)
    return impossible(function, "dtype", std::to_string(static_cast<unsigned>(dtype)), "use a tl_dtype_t");
  return {};
}

Result<float> urgency_of(const char* function, const tl_options_t* options) {
  tl_options_t known = TL_OPTIONS_INIT;
  TL_RETURN_IF_ERROR(read_struct(options, "TL_OPTIONS_INIT", &known));
  if (std::isnan(known.urgency) || known.urgency > 1)
    return impossible(function, "urgency", std::to_string(known.urgency), "use [0, 1], or a negative number for 0.9");
  if (raw_number(known.memory) != TL_MEMORY_HOST)
    return impossible(function, "memory", std::to_string(raw_number(known.memory)), "send and receive in host memory");
  return known.urgency < 0 ? kUrgency : known.urgency;
}

Status start(const char* function, tl_context_t* context, int peer, MessageCall call, const tl_options_t* options,
             tl_request_t** request) {
  if (context == nullptr) return null_argument(function, "a context");
  if (request == nullptr) return null_argument(function, "a place for the request");
  if (call.buffer == nullptr && call.count > 0) return null_argument(function, "a buffer");
  const bool any = !call.sends && peer == TL_ANY_SOURCE;
  if (!any && (peer < 0 || peer >= tl_size(context)))
    return impossible(function, "rank", std::to_string(peer),
                      "use a rank below the world size " + std::to_string(tl_size(context)));
  TL_RETURN_IF_ERROR(check_kind(function, call.count, call.dtype));
  TL_ASSIGN_OR_RETURN(call.urgency, urgency_of(function, options));
  call.set = context->set;
  call.peer = any ? protocol::kAnyRank : static_cast<std::uint32_t>(peer);
  TL_ASSIGN_OR_RETURN(*request, context->session->message(call));
  return {};
}

// What a rank sends to, or receives from, each rank: one part behind the other in `buffer`, of so many elements.
struct Parts {
  std::byte* buffer;
  std::span<const std::uint64_t> counts;
  Dtype dtype;

  std::uint64_t elements_before(std::size_t rank) const {
    const auto before = counts.first(rank);
    return std::accumulate(before.begin(), before.end(), std::uint64_t{0});
  }
  std::byte* of(std::size_t rank) const {  // null where there is nothing
    return counts[rank] == 0 ? nullptr : buffer + elements_before(rank) * dtype_size(dtype);
  }
};

constexpr const char* kAlltoallv = "tl_alltoallv";

Status check(const Parts& parts, const char* what) {
  for (const std::uint64_t count : parts.counts) TL_RETURN_IF_ERROR(check_kind(kAlltoallv, count, parts.dtype));
  if (parts.buffer == nullptr && parts.elements_before(parts.counts.size()) > 0) return null_argument(kAlltoallv, what);
  return {};
}

// Each rank begins with its neighbour, so that not all send to one.
Status start_all(tl_context_t* context, std::uint64_t tag, const Parts& parts, bool sends, const tl_options_t* options,
                 tl_request_t** requests) {
  const std::size_t ranks = parts.counts.size(), self = context->set->rank;
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t peer = (self + (sends ? step : ranks - step)) % ranks;
    MessageCall call{.sends = sends, .is_part = true, .tag = tag, .count = parts.counts[peer], .dtype = parts.dtype};
    call.buffer = parts.of(peer);
    TL_RETURN_IF_ERROR(start(kAlltoallv, context, static_cast<int>(peer), call, options, &requests[peer]));
  }
  return {};
}

Status exchange(tl_context_t* context, std::uint64_t tag, const Parts& in, const Parts& out,
                const tl_options_t* options, tl_request_t** requests) {
  TL_RETURN_IF_ERROR(check(in, "an input"));
  TL_RETURN_IF_ERROR(check(out, "an output"));
  const std::size_t self = context->set->rank;
  if (in.counts[self] != out.counts[self]) {
    return Status(Code::kInvalidArgument, std::string(kAlltoallv) + " was called with two counts of a rank for itself",
                  "rank " + std::to_string(self) + " sends itself " + std::to_string(in.counts[self]) +
                      " elements, and expects " + std::to_string(out.counts[self]),
                  "make them the same");
  }
  TL_RETURN_IF_ERROR(urgency_of(kAlltoallv, options).status());
  TL_RETURN_IF_ERROR(context->session->check_room_for_messages(2 * (in.counts.size() - 1)));
  TL_RETURN_IF_ERROR(start_all(context, tag, out, false, options, requests + in.counts.size()));
  TL_RETURN_IF_ERROR(start_all(context, tag, in, true, options, requests));
  if (in.counts[self] > 0) std::memcpy(out.of(self), in.of(self), in.counts[self] * dtype_size(in.dtype));
  return {};
}

}  // namespace
}  // namespace tensorlane::client

using namespace tensorlane;
using namespace tensorlane::client;

extern "C" {

tl_status_t tl_send(tl_context_t* context, int destination, uint64_t tag, const void* buffer, uint64_t count,
                    tl_dtype_t dtype, const tl_options_t* options, tl_request_t** request) {
  return guarded([&] {
    MessageCall call{.sends = true, .tag = tag, .count = count, .dtype = dtype_of(dtype)};
    call.buffer = static_cast<std::byte*>(const_cast<void*>(buffer));
    return start("tl_send", context, destination, call, options, request);
  });
}

tl_status_t tl_recv(tl_context_t* context, int source, uint64_t tag, void* buffer, uint64_t count, tl_dtype_t dtype,
                    int* from, const tl_options_t* options, tl_request_t** request) {
  return guarded([&] {
    MessageCall call{.tag = tag, .count = count, .dtype = dtype_of(dtype)};
    call.buffer = static_cast<std::byte*>(buffer);
    call.from = from;
    return start("tl_recv", context, source, call, options, request);
  });
}

tl_status_t tl_alltoallv(tl_context_t* context, uint64_t tag, const void* in, const uint64_t* in_counts, void* out,
                         const uint64_t* out_counts, tl_dtype_t dtype, const tl_options_t* options,
                         tl_request_t** requests) {
  return guarded([&]() -> Status {
    if (context == nullptr) return null_argument(kAlltoallv, "a context");
    if (requests == nullptr) return null_argument(kAlltoallv, "a place for the requests");
    const auto ranks = static_cast<std::size_t>(tl_size(context));
    std::fill_n(requests, 2 * ranks, nullptr);
    if (in_counts == nullptr || out_counts == nullptr) return null_argument(kAlltoallv, "counts");
    auto* const source = static_cast<std::byte*>(const_cast<void*>(in));
    return exchange(context, tag, {source, {in_counts, ranks}, dtype_of(dtype)},
                    {static_cast<std::byte*>(out), {out_counts, ranks}, dtype_of(dtype)}, options, requests);
  });
}

}  // extern "C"
