#include "daemon/engine/digest.h"

#include <bit>

namespace tensorlane::engine {

void Digest::mix(Time now, const Event& event) {
  mix(static_cast<std::uint64_t>(event.kind));
  mix(static_cast<std::uint64_t>(now.value));
  switch (event.kind) {
    case Event::Kind::kTensorReady:
      mix(event.tensor_ready.tensor.value);
      mix(event.tensor_ready.sequence.value);
      mix(event.tensor_ready.buffer);
      mix(event.tensor_ready.fp32_scratch);
      if (event.tensor_ready.in_parts) mix(1);
      break;
    case Event::Kind::kPartReady:
      mix(event.part_ready.tensor.value);
      mix(event.part_ready.sequence.value);
      mix(event.part_ready.offset);
      mix(event.part_ready.elements);
      break;
    case Event::Kind::kFrameArrived:
      mix(event.frame.peer.value);
      mix(event.frame.header);
      break;
    case Event::Kind::kSendDone:
    case Event::Kind::kWorkDone:
      mix(event.token);
      break;
    case Event::Kind::kBoost:
      mix(event.boost.tensor.value);
      mix(event.boost.sequence.value);
      break;
    case Event::Kind::kOffer:
      mix(event.offer.tensor.value);
      break;
    case Event::Kind::kPeerUp:
      mix(event.up.peer.value);
      break;
    case Event::Kind::kAbort:
    case Event::Kind::kDrained:
      break;
  }
}

void Digest::mix(const Action& action) {
  mix(static_cast<std::uint64_t>(action.kind));
  if (action.kind == Action::Kind::kComplete) {
    mix(action.complete.tensor.value);
    mix(action.complete.sequence.value);
    mix(action.complete.ok);
  } else if (action.kind == Action::Kind::kPartInPlace) {
    mix(action.in_place.tensor.value);
    mix(action.in_place.sequence.value);
    mix(action.in_place.offset);
    mix(action.in_place.elements);
  } else if (action.kind == Action::Kind::kAgreed) {
    mix(action.agreed.word);
    mix(action.agreed.bits);
  } else {
    mix(action.error.peer.value);
    mix(action.error.header);
  }
}

void Digest::mix(const Work& work) {
  mix(work.out);
  mix(static_cast<std::uint64_t>(work.op) << 40 | static_cast<std::uint64_t>(work.out_dtype) << 32 | work.source_count);
  for (std::uint32_t i = 0; i < work.source_count; ++i) {
    mix(work.sources[i].data);
    mix(static_cast<std::uint64_t>(work.sources[i].dtype));
  }
  mix(work.elements);
  mix(std::bit_cast<std::uint64_t>(work.divisor));
  mix(work.tensor.value);
  mix(work.sequence.value);
  mix(work.token);
}

}  // namespace tensorlane::engine
