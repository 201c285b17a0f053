// The reference reducer: one element at a time, exactly as ports/reducer.h says.
#pragma once

#include "daemon/ports/reducer.h"

namespace tensorlane::simulator {

class ReferenceReducer final : public ports::Reducer {
 public:
  void reduce(std::byte* out, Dtype out_dtype, std::span<const ports::ReduceSource> sources, std::size_t elements,
              ReduceOp op, double divisor) override;
};

}  // namespace tensorlane::simulator
