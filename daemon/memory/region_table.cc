#include "daemon/memory/region_table.h"

#include "common/base/assert.h"

namespace tensorlane::memory {

RegionTable::RegionTable(std::uint32_t max_regions) : regions_(max_regions) {
  TL_ASSERT(max_regions > 0);
  free_.reserve(max_regions);
  for (std::uint32_t i = max_regions; i > 0; --i) free_.push_back(i - 1);
}

std::span<std::byte> RegionTable::resolve(const Descriptor& d) {
  if (d.region >= regions_.size()) return {};
  const Region& region = regions_[d.region];
  if (!region.live || region.generation != d.generation) return {};
  const std::uint64_t size = region.bytes.size();
  if (d.offset > size || d.length > size - d.offset) return {};  // in this order, so that no sum can overflow
  return region.bytes.subspan(d.offset, d.length);
}

Descriptor RegionTable::add(std::span<std::byte> bytes) {
  if (free_.empty()) return {};
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Region& region = regions_[index];
  if (++region.generation == 0) region.generation = 1;
  region.bytes = bytes;
  region.live = true;
  ++live_;
  return {index, region.generation, 0, bytes.size()};
}

void RegionTable::remove(std::uint32_t index) {
  TL_ASSERT(index < regions_.size() && regions_[index].live);
  regions_[index].live = false;
  regions_[index].bytes = {};
  free_.push_back(index);
  --live_;
}

}  // namespace tensorlane::memory
