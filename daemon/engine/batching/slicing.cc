#include "daemon/engine/batching/slicing.h"

#include <algorithm>

#include "daemon/engine/pattern/route.h"
#include "daemon/engine/staging.h"

namespace tensorlane::engine {
namespace {

constexpr std::uint64_t kGeryonElements = 1'048'576;
constexpr std::uint64_t kLargest = mib(4).value;
constexpr std::uint64_t kSmallest = kib(16).value;
constexpr std::uint64_t kAlignment = 16;

}  // namespace

std::uint64_t smallest_slice_elements(Dtype dtype) {
  return kSmallest / dtype_size(dtype);
}

std::uint32_t default_slice_elements(Dtype dtype, std::optional<BitsPerSecond> link) {
  std::uint64_t bytes = std::min(kGeryonElements * dtype_size(dtype), kLargest);
  if (link) bytes = std::min(bytes, bytes_per_second(*link) / 500);
  const std::uint64_t elements = std::max(bytes / dtype_size(dtype), smallest_slice_elements(dtype));
  return static_cast<std::uint32_t>(elements / kAlignment * kAlignment);
}

std::uint32_t fit_slice_elements(std::uint32_t slice_elements, const protocol::PlanTensor& tensor, std::uint16_t hosts,
                                 std::uint8_t classes, Bytes staging) {
  const std::uint64_t sources = most_sources(tensor.pattern, hosts);
  // The widest that a contribution can be on the wire: sums of 16-bit elements travel as float32.
  const std::uint64_t element = std::max<std::uint64_t>(dtype_size(tensor.dtype), sizeof(float));
  const std::uint64_t pages = staging.value / kPageBytes;
  std::uint64_t elements = slice_elements;
  while (elements / 2 >= smallest_slice_elements(tensor.dtype) &&
         sources * pages_for(elements * element) * classes > pages)
    elements /= 2;
  if (elements < slice_elements) elements = std::max(elements / kAlignment * kAlignment, kAlignment);
  return static_cast<std::uint32_t>(elements);
}

}  // namespace tensorlane::engine
