// What goes into the engine and what comes out of it. Plain values: they can be logged, replayed and compared.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/bounded_queue.h"
#include "common/base/descriptor.h"
#include "common/base/dtype.h"
#include "common/base/units.h"
#include "common/protocol/frame.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

using protocol::Pattern;
using protocol::Plan;
using protocol::PlanTensor;

// ---- events ----

// The host's contribution to (tensor, sequence) is complete in `buffer`, where the result will be, too: all elements of
// the tensor, in its dtype (none for a barrier; of an exchange, as many as protocol::HostExchange::buffer() says).
// `sequence` is one more than that of the operation before, which must be complete.
//
// `fp32_scratch` is float32 scratch, as many elements as the tensor, where needs_fp32_scratch() asks for it (engine.h),
// else it is empty. With fp32_contributions it holds the sums of the local ranks, and `buffer` is not read; else its
// content does not matter, and the engine keeps sums in it that are on their way. Both belong to the engine until
// Complete.
//
// With `in_parts` the contribution does not exist yet: PartReady says of one part after the other that it does. Until
// then the engine does not read that part; a result may land only where this host contributes nothing. What is summed,
// and in which order, is the same. Not of an exchange.
struct TensorReady {
  TensorId tensor;
  Sequence sequence;
  Descriptor buffer;
  Descriptor fp32_scratch;
  bool in_parts = false;
};
// Elements [offset, offset + elements) of the host's contribution to an operation that was begun in parts exist now.
// Parts do not overlap, and come in any order; the operation needs all of them.
struct PartReady {
  TensorId tensor;
  Sequence sequence;
  std::uint64_t offset = 0, elements = 0;
};
// A frame has arrived; where it carries payload, that has landed where landing() said.
struct FrameArrived {
  HostIndex peer;
  protocol::FrameHeader header;
};
// The transport no longer reads the payload of the Send with this token.
struct SendDone {
  std::uint64_t token;
};
// The work of this token is finished.
struct WorkDone {
  std::uint64_t token;
};
// A client's wait blocks on this operation (law 9): it goes to the front inside its class. Nothing happens when it does
// not run (any more).
struct Boost {
  TensorId tensor;
  Sequence sequence;
};
// Of a job whose plan says Ordering::kNegotiated: this host could begin the tensor's next operation. TensorReady
// follows when Agreed has named it.
struct Offer {
  TensorId tensor;
};
// The flows to a neighbour (Engine::neighbours()) are up, all of them, for the first time.
struct PeerUp {
  HostIndex peer;
};
// The job is over. After it the engine sends nothing and completes what is pending as failed once the transport has
// drained (the lane feeds Drained). Repeated aborts change nothing.
struct Abort {};
// All flows of the job are closed and all Work is done: no buffer is read or written any more (law 7). What is pending
// completes as failed.
struct Drained {};

struct Event {
  enum class Kind : std::uint8_t {
    kTensorReady,
    kFrameArrived,
    kSendDone,
    kWorkDone,
    kBoost,
    kOffer,
    kPeerUp,
    kAbort,
    kDrained,
    kPartReady
  } kind{};
  TensorReady tensor_ready{};  // the member that `kind` names is the one that counts
  FrameArrived frame{};
  std::uint64_t token = 0;
  Boost boost{};
  Offer offer{};
  PeerUp up{};
  PartReady part_ready{};
};

// ---- actions ----

// The operation is finished; with `ok` false the job was aborted and the buffer holds anything.
struct Complete {
  TensorId tensor;
  Sequence sequence;
  bool ok = false;
  // When the first and the last peer was heard to have begun it; both zero when none was heard of. In a ring these are
  // the neighbours only.
  Time first_peer, last_peer;
};
// Of an operation that was begun in parts: elements [offset, offset + elements) of its result are in the buffer, and do
// not change any more. Not every part of a result is told in this way: Complete says that all of it is there.
struct PartInPlace {
  TensorId tensor;
  Sequence sequence;
  std::uint64_t offset = 0, elements = 0;
};
// A peer broke the protocol (bad tensor, sequence, grant, credit...). The lane closes the job's flow and aborts the job
// with `reason`.
struct ProtocolError {
  HostIndex peer;
  const char* reason = nullptr;  // static text
  protocol::FrameHeader header;
};
// All hosts have offered the next operations of these tensors: tensor 64 * word + i for every bit i. They begin.
struct Agreed {
  std::uint32_t word = 0;
  std::uint64_t bits = 0;
};
struct Action {
  enum class Kind : std::uint8_t { kComplete, kProtocolError, kAgreed, kPartInPlace } kind{};
  Complete complete{};
  ProtocolError error{};
  Agreed agreed{};
  PartInPlace in_place{};
};
using ActionRing = Ring<Action>;

// ---- what pick() returns ----

// A flow from the engine's side.
struct Flow {
  HostIndex peer;
  ClassId cls;  // kControlClass or a data class
  auto operator<=>(const Flow&) const = default;
};

// One transport operation: send `header` followed by the bytes of `payload` (header.payload_bytes of them).
struct Send {
  protocol::FrameHeader header;
  Descriptor payload;
  std::uint64_t token = 0;  // SendDone wanted, unless 0
  Time eligible;            // the time of the step that let it go: pick() time - eligible = how long it waited
};

// One block of arithmetic, at most kMaxOperation bytes of output and four times that of sources: out = (sources in
// order, combined by `op`) / divisor.
struct Work {
  static constexpr std::size_t kMaxSources = 64;
  Descriptor out;
  Dtype out_dtype{};
  std::uint32_t source_count = 0;
  struct Source {
    Descriptor data;
    Dtype dtype{};
  };
  std::array<Source, kMaxSources> sources{};
  std::uint64_t elements = 0;
  ReduceOp op{};  // never kAverage
  double divisor = 1;
  ClassId cls;
  TensorId tensor;  // what it is done for
  Sequence sequence;
  std::uint64_t token = 0;
};

}  // namespace tensorlane::engine
