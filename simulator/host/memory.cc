#include "simulator/host/memory.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::simulator {
namespace {

// Stays until the end, so that whoever still uses it when it is given back is found out by its canaries.
class SimScratch final : public ports::Scratch {
 public:
  explicit SimScratch(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes() const override { return bytes_; }
  Result<bool> populate(std::uint64_t) override { return true; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace

Result<std::unique_ptr<ports::Scratch>> SimMemory::make(const Owner& owner, std::uint64_t bytes) {
  if (refuses(owner.user)) return Status(Code::kResourceExhausted, "there is no memory", "simulated", "wait");
  return std::unique_ptr<ports::Scratch>(std::make_unique<SimScratch>(resolve(allocate(bytes, owner.user))));
}

Descriptor SimMemory::allocate(std::uint64_t bytes, std::uint32_t user) {
  // calloc() leaves large regions untouched until they are used: most of the staging never is.
  auto* own = static_cast<std::byte*>(std::calloc(bytes + 2 * kGuard, 1));
  TL_ASSERT(own != nullptr);
  std::fill_n(own, kGuard, kCanary);
  std::fill_n(own + kGuard + bytes, kGuard, kCanary);
  const Descriptor descriptor = enter({own + kGuard, bytes});
  regions_.back().own.reset(own);
  owned_[own] = {own + bytes + 2 * kGuard, user};
  return descriptor;
}

std::span<std::byte> SimMemory::resolve(const Descriptor& d) {
  if (d.region >= regions_.size()) return {};
  const Region& region = regions_[d.region];
  if (!region.live || region.generation != d.generation) return {};
  if (d.offset > region.bytes.size() || d.length > region.bytes.size() - d.offset) return {};
  return region.bytes.subspan(d.offset, d.length);
}

Descriptor SimMemory::add(std::span<std::byte> bytes) {
  const Owned* owner = owner_of(bytes);
  return owner != nullptr && refuses(owner->user) ? Descriptor() : enter(bytes);
}

const SimMemory::Owned* SimMemory::owner_of(std::span<const std::byte> bytes) const {
  const auto after = owned_.upper_bound(bytes.data());
  if (after == owned_.begin()) return nullptr;
  const Owned& owned = std::prev(after)->second;
  return bytes.data() < owned.end ? &owned : nullptr;
}

bool SimMemory::refuses(std::uint32_t user) {
  const auto found = refusals_.find(user);
  if (found == refusals_.end()) return false;
  Refusal& refusal = found->second;
  if (refusal.left > 0) {
    --refusal.left;
    return false;
  }
  return refusal.asked = true;
}

bool SimMemory::has_refused(std::uint32_t user) const {
  const auto found = refusals_.find(user);
  return found != refusals_.end() && found->second.asked;
}

Descriptor SimMemory::enter(std::span<std::byte> bytes) {
  regions_.push_back({});
  regions_.back().bytes = bytes;
  regions_.back().live = true;
  return {static_cast<std::uint32_t>(regions_.size() - 1), regions_.back().generation, 0, bytes.size()};
}

void SimMemory::remove(std::uint32_t region) {
  if (region >= regions_.size()) return;
  regions_[region].live = false;
  ++regions_[region].generation;
}

std::size_t SimMemory::held(std::uint32_t user) const {
  std::size_t held = 0;
  for (const Region& region : regions_) {
    if (region.own != nullptr || !region.live) continue;
    const Owned* owner = owner_of(region.bytes);
    held += owner != nullptr && owner->user == user ? 1 : 0;
  }
  return held;
}

bool SimMemory::names(const Descriptor& allocated) const {
  if (allocated.length == 0) return false;
  const std::byte* begin = regions_[allocated.region].bytes.data();
  return std::ranges::any_of(regions_, [&](const Region& region) {
    const std::byte* at = region.bytes.data();
    return region.own == nullptr && region.live && at >= begin && at < begin + allocated.length;
  });
}

int SimMemory::broken_canary() const {
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const std::byte* own = regions_[i].own.get();
    if (own == nullptr) continue;
    const auto intact = [](std::byte b) { return b == kCanary; };
    const std::byte* end = own + kGuard + regions_[i].bytes.size();
    if (!std::all_of(own, own + kGuard, intact) || !std::all_of(end, end + kGuard, intact)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace tensorlane::simulator
