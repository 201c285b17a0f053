// Tensors in GPU memory of the library's own, which the ranks of a host share: what works, and what does when it
// cannot.
#include <array>
#include <mutex>

#include "gpu_sharing.h"

namespace tensorlane::test {
namespace {

using ::testing::HasSubstr;

TEST_F(GpuSharing, TheHostsRanksSumOnTheirGpus) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge);
    EXPECT_EQ(group_of(context).at("not_shared_because"), "");
    EXPECT_TRUE(group_of(context).at("shared"));
    for (int round = 0; round < 3; ++round) expect_sum(rank, 4, tensor, kLarge, stream, round);
    give_back(context, "x", std::span(&tensor, 1));
  });
  // Each byte of a host's sum passed to the host once, and was summed once.
  EXPECT_EQ(bytes_of(kFakeCudaOut), 3 * 2 * kLarge * 4);
  EXPECT_EQ(bytes_of(kFakeCudaIn), 3 * 2 * kLarge * 4);
  EXPECT_EQ(bytes_of(kFakeCudaKernel), 3 * 2 * kLarge * 4);
  EXPECT_EQ(bytes_of(kFakeCudaWithin), 3 * 2 * kLarge * 4);
  EXPECT_EQ(Gpu::driver().alive("driver_allocations"), 0);
}

TEST_F(GpuSharing, SmallTensorsOfAGroupAreNotShared) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    const std::array descs = {of_library(context, "small", kSmall), of_library(context, "large", kLarge),
                              of_library(context, "odd", kLarge / 8 + 3)};
    std::array<tl_tensor_t*, 3> tensors{};
    ASSERT_EQ(tl_register(context, "group", descs.data(), descs.size(), tensors.data()), TL_OK) << tl_last_error();
    for (int round = 0; round < 3; ++round) {
      expect_sum(rank, 4, tensors[0], kSmall, stream, round);
      expect_sum(rank, 4, tensors[1], kLarge, stream, round);
      expect_sum(rank, 4, tensors[2], kLarge / 8 + 3, stream, round);
    }
    give_back(context, "group", tensors);
    EXPECT_EQ(tl_unregister(context, "group"), TL_ERROR_NOT_FOUND);
  });
  EXPECT_EQ(Gpu::driver().alive("driver_allocations"), 0);
}

// A program that is far ahead of the GPU.
TEST_F(GpuSharing, OperationsOfATensorFollowOneAnother) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge / 8);
    const std::span<float> floats = floats_of(tensor, kLarge / 8);
    stream.run([=] { std::ranges::fill(floats, static_cast<float>(rank + 1)); });
    for (int i = 0; i < 5; ++i) {
      tl_request_t* request = nullptr;
      ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
      ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
    }
    float first = 0, last = 0;
    stream.run([&] {
      first = floats.front();
      last = floats.back();
    });
    stream.synchronize();
    EXPECT_EQ(first, 20 * 8 * 8 * 8 * 8);  // 2 * (1 + 2 + 3 + 4), and then four times 2 * 4 ranks
    EXPECT_EQ(last, first);
    give_back(context, "x", std::span(&tensor, 1));
  });
}

TEST_F(GpuSharing, AnAverageIsDividedAtTheEnd) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge, "x", TL_AVERAGE);
    const std::span<float> floats = floats_of(tensor, kLarge);
    stream.run([=] { std::ranges::fill(floats, static_cast<float>(rank)); });
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(floats.front(), 3);  // the fake lane doubles: 2 * (0 + 1 + 2 + 3) / 4
    EXPECT_EQ(floats.back(), 3);
    give_back(context, "x", std::span(&tensor, 1));
  });
}

// The fake lane doubles: 2 * (257 + 2) = 518, which is 520 in bfloat16. 257 is none: rounded on its host, it would be
// 256, and the result 516.
TEST_F(GpuSharing, SumsOf16BitNumbersAreRoundedOnce) {
  constexpr std::size_t kNumbers = kLarge / 2 + 5;
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_desc_t desc = of_library(context, "x", kNumbers);
    desc.dtype = TL_BFLOAT16;
    tl_tensor_t* tensor = nullptr;
    ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
    EXPECT_TRUE(group_of(context).at("shared"));
    const std::span<std::uint16_t> numbers(static_cast<std::uint16_t*>(tl_tensor_buffer(tensor)), kNumbers);
    stream.run([=] { std::ranges::fill(numbers, rank == 0 ? 0x4380 : 0x3f80); });  // 256 and 1
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_TRUE(std::ranges::all_of(numbers, [](std::uint16_t each) { return each == 0x4402; })) << numbers.front();
    give_back(context, "x", std::span(&tensor, 1));
  });
}

struct NotShared {
  const char* name;
  int world, hosts;
  bool in_librarys_memory;
  const char* why;
};

class GpuNotShared : public GpuSharing, public ::testing::WithParamInterface<NotShared> {};

TEST_P(GpuNotShared, TheWayIsTheOldOneAndTheReasonIsSaid) {
  const NotShared& c = GetParam();
  daemon.set_hosts(static_cast<std::uint32_t>(c.hosts));
  run(c.world, [&](int rank, const ClientContext& context) {
    const Stream stream;
    const DeviceMemory memory(kLarge / 2);
    const bool last = rank == c.world - 1;  // one is enough
    tl_tensor_t* tensor =
        c.in_librarys_memory || !last ? registered_here(context, kLarge / 8) : registered_on_gpu(context, "x", memory);
    EXPECT_THAT(group_of(context).at("not_shared_because").get<std::string>(), HasSubstr(c.why));
    expect_sum(rank, c.world, tensor, kLarge / 8, stream, 1);
    void* buffer = tl_tensor_buffer(tensor);
    EXPECT_EQ(tl_gpu_free(context, buffer), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_gpu_free(context, buffer) == TL_OK, buffer != memory.data());
  });
  EXPECT_EQ(bytes_of(kFakeCudaKernel), 0U);
  EXPECT_EQ(Gpu::driver().alive("driver_allocations"), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Reasons, GpuNotShared,
    ::testing::Values(NotShared{"Elsewhere", 4, 2, false,
                                "rank 3 on host 'h1': a tensor is not in memory of tl_gpu_alloc: 'x'"},
                      NotShared{"OneRankEach", 2, 2, true, "each host has one rank"},
                      NotShared{"Uneven", 3, 2, true, "hosts have different numbers of ranks"}),
    [](const auto& info) { return std::string(info.param.name); });

// Whatever the driver refuses while ranks find out whether they can share, they do not, and say why.
TEST_F(GpuSharing, WhatOneRankCannotNobodyDoes) {
  for (const char* symbol : {"cuIpcGetMemHandle", "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"}) {
    Gpu::driver().fail(symbol, 1, 999);
    run(4, [&](int rank, const ClientContext& context) {
      const Stream stream;
      tl_tensor_t* tensor = registered_here(context, kLarge / 8);
      EXPECT_THAT(group_of(context).at("not_shared_because").get<std::string>(), HasSubstr(symbol));
      expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
      give_back(context, "x", std::span(&tensor, 1));
    });
  }
  EXPECT_EQ(bytes_of(kFakeCudaKernel), 0U);
}

TEST_F(GpuSharing, WithoutMemoryTheErrorSaysSo) {
  daemon.set_hosts(1);
  run(1, [](int, const ClientContext& context) {
    void* memory = nullptr;
    Gpu::driver().fail("cuMemAlloc_v2", 1, 2);
    EXPECT_EQ(tl_gpu_alloc(context, 0, 4096, &memory), TL_ERROR_RESOURCE_EXHAUSTED);
    EXPECT_THAT(tl_last_error(), HasSubstr("cuMemAlloc failed"));
    EXPECT_EQ(tl_gpu_alloc(context, 7, 4096, &memory), TL_ERROR_UNAVAILABLE);
    EXPECT_EQ(tl_gpu_alloc(context, -1, 4096, &memory), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tl_gpu_alloc(context, 0, 0, &memory), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tl_gpu_free(context, &memory), TL_ERROR_INVALID_ARGUMENT);
    ASSERT_EQ(tl_gpu_alloc(context, 0, 4096, &memory), TL_OK) << tl_last_error();
    Gpu::driver().fail("cuMemFree_v2", 1, 999);
    EXPECT_EQ(tl_gpu_free(context, memory), TL_ERROR_UNAVAILABLE);
    EXPECT_THAT(tl_last_error(), HasSubstr("cuMemFree failed"));
    EXPECT_EQ(tl_gpu_free(context, nullptr), TL_OK);
  });
  gpu.is_broken();  // what could not be freed is left
}

// Nothing is asked, and nothing is shared, unless all ranks say so.
TEST_F(GpuSharing, TheVariableTurnsItOn) {
  unsetenv("TENSORLANE_GPU_SUMS");
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge / 8);
    expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
    give_back(context, "x", std::span(&tensor, 1));
  });
  EXPECT_EQ(bytes_of(kFakeCudaKernel), 0U);
}

class GpuSharingFails : public GpuSharing, public ::testing::WithParamInterface<const char*> {};

// The job fails while shares are on their way: no stream hangs, and all of the result says that it is none.
TEST_P(GpuSharingFails, AnErrorFillsTheWholeResult) {
  // Each rank launches the kernel for nothing when it registers.
  Gpu::driver().fail(GetParam(), std::string(GetParam()) == "cuLaunchKernel" ? 4 + 2 : 2, 999);
  std::mutex mutex;
  std::vector<std::string> errors;
  // What control does when it hears that a rank is gone.
  std::thread control([&] {
    (void)daemon.leaves(1);
    daemon.abort_job("job", Status(Code::kAborted, "a rank has left the job", "job 'job'", "start again"));
  });
  run(4, [&](int, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge);
    const std::span<float> floats = floats_of(tensor, kLarge);
    stream.run([=] { std::ranges::fill(floats, 1.F); });
    tl_request_t* request = nullptr;
    const auto note_error = [&] {
      std::lock_guard lock(mutex);
      errors.emplace_back(tl_last_error());
    };
    if (tl_post_on(&tensor, 1, stream, &request) != TL_OK) return note_error();  // another rank was quicker
    if (tl_stream_wait(&request, 1, stream) != TL_OK) return note_error();
    std::size_t numbers = 0, right = 0;
    stream.run([&] {
      numbers = std::ranges::count_if(floats, [](float each) { return each == each; });
      right = std::ranges::count(floats, 8.F);
    });
    stream.synchronize();
    if (right == kLarge) return;  // on the other host it may have been over
    EXPECT_EQ(numbers, 0U);
    EXPECT_NE(tl_post_on(&tensor, 1, stream, &request), TL_OK);
    note_error();
  });
  control.join();
  const std::string call = GetParam();
  EXPECT_THAT(errors, ::testing::Contains(HasSubstr(call.substr(0, call.find("_v2")))));
  EXPECT_THAT(errors, ::testing::Contains(HasSubstr("a rank has left the job")));
  gpu.keeps_memory();
}

INSTANTIATE_TEST_SUITE_P(Calls, GpuSharingFails,
                         ::testing::Values("cuLaunchKernel", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
                                           "cuMemcpyHtoDAsync_v2"),
                         [](const auto& info) {
                           const std::string call = info.param;
                           return call.substr(0, call.find('_'));
                         });

// What a context leaves is the program's, and when that gives it back, the next one's.
TEST_F(GpuSharing, MemoryThatOthersMayStillHaveMappedIsUsedAgain) {
  std::mutex mutex;
  std::vector<void*> left;
  for (int i = 0; i < 3; ++i) {
    run(4, [&](int rank, const ClientContext& context) {
      const Stream stream;
      tl_tensor_t* tensor = registered_here(context, kLarge / 8);
      expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
      std::lock_guard lock(mutex);
      left.push_back(tl_tensor_buffer(tensor));
    });
    EXPECT_EQ(Gpu::driver().alive("driver_allocations"), 4);
    for (void* memory : std::exchange(left, {})) {
      EXPECT_EQ(tl_gpu_free(nullptr, memory), TL_OK) << tl_last_error();
      EXPECT_EQ(tl_gpu_free(nullptr, memory), TL_ERROR_INVALID_ARGUMENT);
    }
  }
  gpu.keeps_memory();
}

TEST_F(GpuSharing, ThreeRanksOfAHostAndThreeHosts) {
  for (const std::uint32_t hosts : {2U, 3U}) {
    daemon.set_hosts(hosts);
    run(6, [](int rank, const ClientContext& context) {
      const Stream stream;
      tl_tensor_t* tensor = registered_here(context, kLarge / 4 + 7);
      EXPECT_TRUE(group_of(context).at("shared"));
      for (int round = 0; round < 2; ++round) expect_sum(rank, 6, tensor, kLarge / 4 + 7, stream, round);
      give_back(context, "x", std::span(&tensor, 1));
    });
  }
}

TEST_F(GpuSharing, AGroupIsRegisteredOnce) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge / 8);
    const tl_tensor_desc_t desc = of_library(context, "other", kLarge / 8);
    tl_tensor_t* again = nullptr;
    EXPECT_EQ(tl_register(context, "x", &desc, 1, &again), TL_ERROR_ALREADY_EXISTS) << tl_last_error();
    EXPECT_EQ(tl_gpu_free(context, desc.buffer), TL_OK) << tl_last_error();
    expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
    give_back(context, "x", std::span(&tensor, 1));
  });
}

TEST_F(GpuSharing, WhatIsWrongIsSaidBeforeOthersAreAsked) {
  run(2, [](int, const ClientContext& context) {
    tl_tensor_desc_t desc = of_library(context, "x", kLarge / 8);
    tl_tensor_t* tensor = nullptr;
    desc.urgency = 7;
    EXPECT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_ERROR_INVALID_ARGUMENT);
    desc.urgency = -1;
    desc.name = nullptr;
    EXPECT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tl_gpu_free(context, desc.buffer), TL_OK);
  });
}

// Whoever leaves a set does not hear when the others have closed its memory: that is kept.
TEST_F(GpuSharing, AProcessSetSharesAndIsLeft) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    const std::array<int, 4> ranks = {0, 1, 2, 3};
    tl_process_set_config_t config = TL_PROCESS_SET_INIT;
    config.ranks = ranks.data();
    config.count = ranks.size();
    config.number = 5;
    tl_context_t* set = nullptr;
    ASSERT_EQ(tl_process_set(context, &config, &set), TL_OK) << tl_last_error();
    tl_tensor_t* tensor = registered_here(set, kLarge / 8);
    EXPECT_TRUE(group_of(context).at("shared"));
    expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
    void* memory = tl_tensor_buffer(tensor);
    EXPECT_EQ(tl_finalize(set), TL_OK) << tl_last_error();
    const auto freed = [&] { return tl_gpu_free(context, memory) == TL_OK; };
    EXPECT_TRUE(eventually(freed));  // when the daemon has answered that the group is gone
    const char* json = nullptr;
    ASSERT_EQ(tl_gpu_status(context, &json), TL_OK);
    EXPECT_TRUE(nlohmann::json::parse(json).at("groups").empty());
  });
  EXPECT_EQ(Gpu::driver().alive("driver_allocations"), 4);
  gpu.keeps_memory();
}

// The host's other rank may be reading this one's memory: the daemon hears of the end before the program may write.
TEST_F(GpuSharing, ARankThatGivesUpIsGoneBeforeItsMemoryIsItsOwn) {
  run(4, [this](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge);
    EXPECT_EQ(tl_barrier(context, 10), TL_OK);
    if (rank == 0) daemon.hold_after(daemon.operations() + 2);  // the meetings of both hosts
    EXPECT_EQ(tl_barrier(context, 10), TL_OK);
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    if (rank == 0) {
      ASSERT_TRUE(eventually([&] { return bytes_of(kFakeCudaKernel) > 0; }));
      EXPECT_EQ(daemon.leaves(0).size(), 0U);
      EXPECT_EQ(tl_abort(context, "enough"), TL_OK);
      EXPECT_EQ(tl_wait(request, 10), TL_ERROR_ABORTED);
      EXPECT_GE(daemon.leaves(0).size(), 1U);
      daemon.abort_job("job", Status(Code::kAborted, "a rank has left the job", "job 'job'", "start again"));
    } else {
      EXPECT_EQ(tl_wait(request, 20), TL_ERROR_ABORTED);
    }
  });
  gpu.keeps_memory();
}

}  // namespace
}  // namespace tensorlane::test
