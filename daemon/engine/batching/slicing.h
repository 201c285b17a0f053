// How large slices are: small enough that an urgent tensor soon gets its turn, large enough that the cost per slice
// does not show.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/dtype.h"
#include "common/base/units.h"
#include "common/protocol/plan.h"

namespace tensorlane::engine {

// No slice is smaller, but the last one of a shard: 16 KiB.
std::uint64_t smallest_slice_elements(Dtype dtype);

// The default slice of a plan: 1,048,576 elements (Geryon, section IV: 1,024K), at most 4 MiB, at most what the slowest
// link carries in 2 ms (unset: unknown), and at least 16 KiB. A multiple of 16 elements.
std::uint32_t default_slice_elements(Dtype dtype, std::optional<BitsPerSecond> link);

// `slice_elements`, halved until every one of `classes` can have a slice of all `hosts` in `staging` at once, as
// Engine::apply_plan() demands; never under 16 KiB.
std::uint32_t fit_slice_elements(std::uint32_t slice_elements, const protocol::PlanTensor& tensor, std::uint16_t hosts,
                                 std::uint8_t classes, Bytes staging);

}  // namespace tensorlane::engine
