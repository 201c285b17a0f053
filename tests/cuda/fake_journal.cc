#include "fake_journal.h"

#include <algorithm>
#include <cstdio>

namespace tensorlane::fake_cuda {
namespace {

constexpr std::size_t kMaxTexts = 1000, kMaxCopies = std::size_t{1} << 20;

#define TL_FAKE_CUDA_NAME(symbol, parameters) #symbol,
constexpr const char* kNames[] = {TL_FAKE_CUDA_ENTRY_POINTS(TL_FAKE_CUDA_NAME)};
#undef TL_FAKE_CUDA_NAME
static_assert(std::size(kNames) == static_cast<std::size_t>(Call::kCount));

}  // namespace

const char* name_of(Call call) {
  return kNames[static_cast<std::size_t>(call)];
}

std::optional<Call> call_named(std::string_view symbol) {
  const auto* found = std::find(std::begin(kNames), std::end(kNames), symbol);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<Call>(found - std::begin(kNames));
}

void Journal::clear() {
  const bool prints = prints_;
  *this = Journal{};
  prints_ = prints;
}

int Journal::next(Counter& counter) {
  ++counter.count;
  const auto planned = std::find_if(counter.planned.begin(), counter.planned.end(),
                                    [&](const Planned& fault) { return fault.count == counter.count; });
  if (planned == counter.planned.end()) return 0;
  const int error = planned->error;
  counter.planned.erase(planned);
  return error;
}

void Journal::record(const std::string& text) {
  ++violations_;
  if (texts_.size() < kMaxTexts) texts_.push_back(text);
  if (prints_) std::fprintf(stderr, "fake CUDA driver: violation: %s\n", text.c_str());
}

const char* Journal::violation(std::size_t index) const {
  return index < texts_.size() ? texts_[index].c_str() : nullptr;
}

std::size_t Journal::put(FakeCudaCopy copy) {
  auto& in_flight = in_flight_[copy.direction];
  in_flight.most = std::max(in_flight.most, ++in_flight.now);
  copy.put = ++moment_;
  if (copies_.size() == kMaxCopies) return kMaxCopies;
  copies_.push_back(copy);
  return copies_.size() - 1;
}

void Journal::began(std::size_t place) {
  ++moment_;
  if (place < copies_.size()) copies_[place].began = moment_;
}

void Journal::failed(std::size_t place) {
  if (place < copies_.size()) copies_[place].failed = 1;
}

void Journal::ended(std::size_t place, int direction) {
  --in_flight_[direction].now;
  ++moment_;
  if (place < copies_.size()) copies_[place].ended = moment_;
}

}  // namespace tensorlane::fake_cuda
