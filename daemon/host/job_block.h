// A block of work of a job, from its choice until it is done.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/units.h"
#include "daemon/ports/executor.h"
#include "daemon/ports/telemetry.h"

namespace tensorlane::host {

class JobPart;

struct JobBlock final : ports::Block {
  JobPart* part = nullptr;        // whose it is while it is under way
  std::optional<RailIndex> rail;  // whose engine has chosen it; none: it is between ranks of this host
  bool message = false;           // a message's, between ranks of this host
  std::uint64_t token = 0;        // of the engine, or of the message
  TensorId tensor;
  std::uint64_t reduced = 0, copied = 0;  // bytes that it moves
  ports::TraceSpan span;                  // its length is known when it is done
};

}  // namespace tensorlane::host
