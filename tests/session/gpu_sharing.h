// Four ranks on two hosts, each a thread, and the fake driver: what tests of tensors have that the ranks of a host
// share. Between processes: tests/gpu.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include "fake_daemon.h"
#include "gpu_program.h"

namespace tensorlane::test {

inline constexpr std::size_t kLarge = 2 << 20, kSmall = 1000;  // floats

// A tensor in memory of tl_gpu_alloc.
inline tl_tensor_desc_t of_library(tl_context_t* context, const char* name, std::uint64_t count) {
  void* memory = nullptr;
  EXPECT_EQ(tl_gpu_alloc(context, 0, count * sizeof(float), &memory), TL_OK) << tl_last_error();
  tl_tensor_desc_t desc = tensor_desc(name, memory, count);
  desc.memory = TL_MEMORY_CUDA;
  return desc;
}

inline void give_back(tl_context_t* context, const char* group, std::span<tl_tensor_t* const> tensors) {
  std::vector<void*> buffers;
  for (const tl_tensor_t* tensor : tensors) buffers.push_back(tl_tensor_buffer(tensor));
  EXPECT_EQ(tl_unregister(context, group), TL_OK) << tl_last_error();
  for (void* buffer : buffers) EXPECT_EQ(tl_gpu_free(context, buffer), TL_OK) << tl_last_error();
}

inline std::span<float> floats_of(const tl_tensor_t* tensor, std::size_t count) {
  return {static_cast<float*>(tl_tensor_buffer(tensor)), count};
}

// What a rank contributes; sums of four of them are exact.
inline float input(int rank, std::size_t at, int round) {
  return static_cast<float>((at * 7 + static_cast<std::size_t>(rank) * 13 + static_cast<std::size_t>(round) * 3) %
                            1000);
}
// The fake lane doubles what it sums.
inline float output(int world, std::size_t at, int round) {
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += input(rank, at, round);
  return 2 * sum;
}

class GpuSharing : public ::testing::Test {
 protected:
  GpuSharing() {
    setenv("TENSORLANE_GPU_SUMS", "1", 1);
    setenv("TENSORLANE_GPU_KERNELS", GPU_KERNELS, 1);
    daemon.set_hosts(2);
  }
  ~GpuSharing() override { unsetenv("TENSORLANE_GPU_SUMS"); }

  // Runs every rank in a thread, with a context of its own.
  void run(int world, const std::function<void(int, const ClientContext&)>& rank_program) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back([this, rank, world, &rank_program] {
        const ClientContext context(daemon.socket(), "job", rank, world);
        ASSERT_EQ(context.status(), TL_OK) << context.error();
        rank_program(rank, context);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  static tl_tensor_t* registered_here(tl_context_t* context, std::uint64_t count, const char* name = "x",
                                      tl_op_t op = TL_SUM) {
    tl_tensor_desc_t desc = of_library(context, name, count);
    desc.op = op;
    tl_tensor_t* tensor = nullptr;
    EXPECT_EQ(tl_register(context, name, &desc, 1, &tensor), TL_OK) << tl_last_error();
    return tensor;
  }
  static nlohmann::json group_of(tl_context_t* context) {
    const char* json = nullptr;
    EXPECT_EQ(tl_gpu_status(context, &json), TL_OK);
    return nlohmann::json::parse(json).at("groups").at(0);
  }
  // An operation whose input a kernel of the stream writes, and whose result another one of it reads.
  static void expect_sum(int rank, int world, tl_tensor_t* tensor, std::size_t count, const Stream& stream, int round) {
    const std::span<float> floats = floats_of(tensor, count);
    stream.run([=] {
      for (std::size_t i = 0; i < count; ++i) floats[i] = input(rank, i, round);
    });
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
    std::size_t wrong = 0;
    stream.run([&] {
      for (std::size_t i = 0; i < count; ++i) wrong += floats[i] == output(world, i, round) ? 0 : 1;
    });
    stream.synchronize();
    EXPECT_EQ(wrong, 0U) << "round " << round;
  }
  static std::uint64_t bytes_of(int direction) {
    std::uint64_t bytes = 0;
    for (const FakeCudaCopy& copy : Gpu::driver().all_copies()) bytes += copy.direction == direction ? copy.bytes : 0;
    return bytes;
  }

  Gpu gpu{1, std::chrono::microseconds(20)};
  FakeDaemon daemon;
};

}  // namespace tensorlane::test
