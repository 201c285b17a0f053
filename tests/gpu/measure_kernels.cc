// The kernels that sum the tensors of a host's ranks, beside a copy within the GPU: bytes that are read and written in
// a second.
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "client-lib/src/cuda/kernels/sources.h"
#include "gpu_check.h"

namespace tensorlane::gpu_check {
namespace {

using client::cuda::KernelSources;

struct KernelCase {
  const char* kernel;
  std::uint64_t element_bytes, sum_bytes;
  std::uint32_t sources;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double bandwidth(double bytes, double seconds) {
  return bytes * 1e-9 / seconds;
}

}  // namespace

void measure_kernels(Rank& rank) {
  const std::string image = contents(rank.settings.kernels);
  if (image.empty()) {
    std::fprintf(stderr, "gpu_check: %s cannot be read: give --kernels (build/cuda-kernels/combine.fatbin)\n",
                 rank.settings.kernels.c_str());
    std::exit(2);
  }
  constexpr std::uint32_t kMost = 8;
  const std::uint64_t bytes = std::min<std::uint64_t>(rank.settings.largest, 128 << 20);  // of a source
  const int turns = rank.settings.brief ? 3 : 15, launches = rank.settings.brief ? 1 : 8;
  const Stream stream(rank.gpu);
  const GpuMemory out(rank.gpu, 2 * bytes);
  std::vector<std::unique_ptr<GpuMemory>> sources;
  for (std::uint32_t i = 0; i < kMost; ++i) {
    sources.push_back(std::make_unique<GpuMemory>(rank.gpu, bytes));
    rank.gpu.fill(sources[i]->data(), 0, bytes, stream);
  }
  rank.gpu.load_kernels(image);
  for (const KernelCase& c : {KernelCase{"tl_sum_float32", 4, 4, 2}, KernelCase{"tl_sum_float32", 4, 4, 4},
                              KernelCase{"tl_sum_float32", 4, 4, 8}, KernelCase{"tl_sum_bfloat16", 2, 4, 2},
                              KernelCase{"tl_sum_bfloat16", 2, 4, 8}, KernelCase{"tl_sum_float16", 2, 4, 8},
                              KernelCase{"tl_max_float32", 4, 4, 8}}) {
    KernelSources from{};
    for (std::uint32_t i = 0; i < c.sources; ++i) from.at[i] = reinterpret_cast<std::uintptr_t>(sources[i]->data());
    auto to = reinterpret_cast<unsigned long long>(out.data());
    std::uint64_t elements = bytes / c.element_bytes;
    std::uint32_t count = c.sources;
    void* parameters[] = {&to, &from, &count, &elements};
    const auto timed = [&](const std::function<void()>& put) {
      const double start = now_seconds();
      for (int i = 0; i < launches; ++i) put();
      rank.gpu.synchronize(stream);
      return (now_seconds() - start) / launches;
    };
    const double moved = static_cast<double>(c.sources * bytes + elements * c.sum_bytes);
    Samples ours, copy, ratio;
    for (int i = -2; i < turns; ++i) {
      const double kernel = timed([&] { rank.gpu.launch(c.kernel, elements * c.sum_bytes, parameters, stream); });
      const double plain = timed([&] { rank.gpu.copy(out.data(), sources[0]->data(), bytes, stream); });
      if (i < 0) continue;
      ours.add(bandwidth(moved, kernel));
      copy.add(bandwidth(2 * static_cast<double>(bytes), plain));
      ratio.add(bandwidth(moved, kernel) / bandwidth(2 * static_cast<double>(bytes), plain));
    }
    rank.figures["kernels"][std::string(c.kernel) + " of " + std::to_string(c.sources)] = {
        {"bytes", bytes}, {"gb_per_s", ours.json()}, {"copy_gb_per_s", copy.json()}, {"ratio", ratio.median()}};
  }
}

}  // namespace tensorlane::gpu_check
