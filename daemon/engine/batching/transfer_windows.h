// When each batch is transferred: Caramel's network transfer scheduler, which uses the forward pass of the next
// iteration, too (sections 3.3.1 and 4.3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::engine {

// A batch, with its transfer boundaries: it exists from `updated` on, counted from the beginning of the backward pass
// (the latest of its members), and must have arrived by `read`, counted from the beginning of the forward pass that
// follows (the earliest of its members).
struct TransferWindow {
  Bytes size;
  Duration time;  // on the network, alone
  Duration updated;
  Duration read;
};

enum class Pass : std::uint8_t { kBackward, kForward };

// The network carries this batch in [start, start + time), counted as its window's boundaries are. In the backward pass
// the end may be beyond the pass's own; in the forward pass the start may be negative.
struct Placement {
  Pass pass = Pass::kBackward;
  Duration start;
};

struct TransferSchedule {
  std::vector<Placement> placements;  // by window
  Duration tail;                      // how far transfers reach beyond the end of the backward pass
  Duration lead;                      // how far they begin before the forward pass
  Duration iteration;                 // backward + tail + lead + forward
};

// Greedy 2-D bin packing (section 4.3); the two dimensions are time and data. Largest batches first (of equal ones the
// first given), each gets a gap in which the network is idle and the worker computes: the earliest one of the backward
// pass after its update; else the latest one of the forward pass before its read, so that earlier ones stay free for
// batches that are read early. What fits nowhere is placed in a second round, largest first, where it makes the
// iteration longer by the least: after the backward pass, or before the forward pass (if equal: after).
// `updated` must not be after the end of the backward pass, nor `read` after that of the forward pass. In O(n^2).
TransferSchedule schedule_transfers(std::span<const TransferWindow> windows, Duration backward, Duration forward);

}  // namespace tensorlane::engine
