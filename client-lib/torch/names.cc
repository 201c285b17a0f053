#include "client-lib/torch/names.h"

#include <algorithm>
#include <iterator>

namespace tensorlane::torch_backend {
namespace {

// By tl_operation_t, as the C interface names the groups of array calls (tl_unregister).
constexpr const char* kOperations[] = {"allreduce",     "broadcast", "allgather", "barrier", "push",    "pull",
                                       "reducescatter", "reduce",    "gather",    "scatter", "alltoall"};
static_assert(std::size(kOperations) == TL_ALLTOALL + 1);

}  // namespace

std::string Names::name_of(std::uint64_t number, std::uint64_t turn) const {
  return prefix_ + std::to_string(number) + "." + std::to_string(turn);
}

Names::Turn Names::next(const Kind& kind, std::uint64_t bytes) {
  Turn turn;
  const auto [found, first] = kinds_.try_emplace(kind);
  OfKind& names = found->second;
  if (first) {
    names.number = ++numbers_;
    names.bytes = bytes;
    names.most = std::clamp<std::uint64_t>(kMostBytesOfKind / std::max<std::uint64_t>(bytes, 1), 1, kMostNames);
  }
  names.last = ++calls_;
  const std::uint64_t place = names.calls++ % names.most;
  if (place == names.made) {
    ++names.made;
    bytes_ += bytes;
  }
  turn.name = name_of(names.number, place);
  while (kinds_.size() > kMostKinds || (bytes_ > kMostBytes && kinds_.size() > 1)) drop_oldest(turn.old);
  return turn;
}

void Names::drop_oldest(std::vector<std::string>& old) {
  const auto oldest = std::min_element(kinds_.begin(), kinds_.end(),
                                       [](const auto& a, const auto& b) { return a.second.last < b.second.last; });
  const OfKind& names = oldest->second;
  for (std::uint64_t place = 0; place < names.made; ++place)
    old.push_back(std::string(kOperations[oldest->first.operation]) + "." + name_of(names.number, place));
  bytes_ -= names.bytes * names.made;
  kinds_.erase(oldest);
}

}  // namespace tensorlane::torch_backend
