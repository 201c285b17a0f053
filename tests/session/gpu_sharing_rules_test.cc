// The rules by which ranks of a host share tensors on their GPUs: which, when, in what order, and with whom.
#include <array>
#include <latch>
#include <map>
#include <mutex>

#include "gpu_sharing.h"

namespace tensorlane::test {
namespace {

using ::testing::HasSubstr;

// Those that are under way at once have memory of their own for sums.
TEST_F(GpuSharing, SumsOf16BitNumbersOfTwoTensorsAreApart) {
  run(4, [](int, const ClientContext& context) {
    const Stream stream;
    std::array descs = {of_library(context, "x", kLarge), of_library(context, "y", kLarge)};
    for (tl_tensor_desc_t& desc : descs) desc.dtype = TL_BFLOAT16;
    std::array<tl_tensor_t*, 2> tensors{};
    ASSERT_EQ(tl_register(context, "group", descs.data(), descs.size(), tensors.data()), TL_OK) << tl_last_error();
    const auto numbers_of = [](const tl_tensor_t* tensor) {
      return std::span(static_cast<std::uint16_t*>(tl_tensor_buffer(tensor)), kLarge);
    };
    stream.run([&] {
      std::ranges::fill(numbers_of(tensors[0]), 0x3f80);  // 1
      std::ranges::fill(numbers_of(tensors[1]), 0x4040);  // 3
    });
    std::array<tl_request_t*, 2> requests{};
    ASSERT_EQ(tl_post_on(tensors.data(), 2, stream, requests.data()), TL_OK) << tl_last_error();
    for (tl_request_t* request : requests) ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_TRUE(std::ranges::all_of(numbers_of(tensors[0]), [](std::uint16_t each) { return each == 0x4100; }));  // 8
    EXPECT_TRUE(std::ranges::all_of(numbers_of(tensors[1]), [](std::uint16_t each) { return each == 0x41c0; }));  // 24
    give_back(context, "group", tensors);
  });
  std::map<std::uint64_t, std::uint64_t> written;  // by kernels: sums, and then shares of results
  for (const FakeCudaCopy& copy : Gpu::driver().all_copies()) {
    if (copy.direction != kFakeCudaKernel) continue;
    EXPECT_TRUE(written.emplace(copy.device_address, copy.bytes).second);
  }
  std::uint64_t end = 0;
  for (const auto& [start, bytes] : written) {
    EXPECT_GE(start, end);
    end = start + bytes;
  }
}

// Sums are issued as late as copies are: what is urgent waits for two of another tensor at most.
TEST_F(GpuSharing, AnUrgentTensorIsSummedFirst) {
  std::latch registered(4), held(1), posted(4);
  std::array<std::array<std::uint64_t, 4>, 2> buffers{};  // by tensor and rank
  std::thread lane([&] {
    registered.wait();
    daemon.set_mode(Mode::kHold);
    held.count_down();
    posted.wait();
    EXPECT_TRUE(daemon.wait_submitted(4 * (4 + 2)));  // what registration asks, and the first meetings
    Gpu::driver().hold_all_streams();
    daemon.set_mode(Mode::kRun);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until all have met
    Gpu::driver().resume_all_streams();
  });
  run(4, [&](int rank, const ClientContext& context) {
    const Stream stream;
    std::array descs = {of_library(context, "later", kLarge), of_library(context, "urgent", kLarge)};
    descs[0].urgency = 0.1F;
    descs[1].urgency = 0.9F;
    std::array<tl_tensor_t*, 2> tensors{};
    ASSERT_EQ(tl_register(context, "group", descs.data(), descs.size(), tensors.data()), TL_OK) << tl_last_error();
    for (std::size_t i = 0; i < 2; ++i)
      buffers[i][static_cast<std::size_t>(rank)] = reinterpret_cast<std::uintptr_t>(descs[i].buffer);
    registered.count_down();
    held.wait();
    std::array<tl_request_t*, 2> requests{};
    ASSERT_EQ(tl_post_on(tensors.data(), 2, stream, requests.data()), TL_OK) << tl_last_error();
    posted.count_down();
    ASSERT_EQ(tl_stream_wait(requests.data(), 2, stream), TL_OK) << tl_last_error();
    stream.synchronize();
    give_back(context, "group", tensors);
  });
  lane.join();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::size_t later = 0, urgent = 0;
    for (const FakeCudaCopy& copy : Gpu::driver().all_copies()) {
      if (copy.direction != kFakeCudaKernel) continue;
      if (copy.device_address - buffers[0][rank] < kLarge * 4) ++later;
      if (copy.device_address - buffers[1][rank] >= kLarge * 4) continue;
      ++urgent;
      EXPECT_LE(later, 2U) << "before sum " << urgent << " of the urgent tensor of rank " << rank;
    }
    EXPECT_EQ(later, 4U);
    EXPECT_EQ(urgent, 4U);
  }
}

// A rank that has all shares lets the others take its own before the program may write to it.
TEST_F(GpuSharing, NoOperationIsOverBeforeAllHaveTheShares) {
  constexpr std::uint64_t kOfRegistration = 5, kUntilAllAreInPlace = 2 + 2 + 2;  // by sets of ranks
  daemon.hold_after(kOfRegistration + kUntilAllAreInPlace);
  std::latch looked(4);
  run(4, [&](int, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge);
    const std::span<float> floats = floats_of(tensor, kLarge);
    stream.run([=] { std::ranges::fill(floats, 1.F); });
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    EXPECT_TRUE(daemon.wait_submitted(4 * (4 + 4)));  // the last meeting, too
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(bytes_of(kFakeCudaWithin), 2 * kLarge * 4);
    EXPECT_EQ(tl_test(request), TL_IN_PROGRESS);
    looked.arrive_and_wait();
    daemon.set_mode(Mode::kRun);
    EXPECT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(floats.front(), 8);
    EXPECT_EQ(floats.back(), 8);
    give_back(context, "x", std::span(&tensor, 1));
  });
}

// Of a group's tensors the shares and the rest are registered apart, with the positions that they have in the group.
TEST_F(GpuSharing, TensorsKeepTheirPositions) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    std::array descs = {of_library(context, "a", kSmall), of_library(context, "b", kLarge / 8),
                        of_library(context, "c", kLarge / 8), of_library(context, "d", kSmall)};
    for (std::uint32_t i = 0; i < descs.size(); ++i) descs[i].position = i;
    std::array<tl_tensor_t*, 4> tensors{};
    ASSERT_EQ(tl_register(context, "group", descs.data(), descs.size(), tensors.data()), TL_OK) << tl_last_error();
    for (std::size_t i = 0; i < descs.size(); ++i)
      expect_sum(rank, 4, tensors[i], descs[i].count, stream, static_cast<int>(i));
    give_back(context, "group", tensors);
  });
}

// Also at another place on each rank. What lies around it stays as it is, and none of it is freed meanwhile.
TEST_F(GpuSharing, ATensorMayLieAnywhereInTheMemory) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    void* memory = nullptr;
    ASSERT_EQ(tl_gpu_alloc(context, 0, kLarge * 4, &memory), TL_OK) << tl_last_error();
    const std::size_t offset = 64 * static_cast<std::size_t>(rank + 1);
    tl_tensor_desc_t desc = tensor_desc("x", static_cast<std::byte*>(memory) + offset, kLarge / 8 + 1);
    desc.memory = TL_MEMORY_CUDA;
    tl_tensor_t* tensor = nullptr;
    ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
    EXPECT_TRUE(group_of(context).at("shared")) << group_of(context);
    const std::span<float> before(static_cast<float*>(memory), offset / 4);
    const std::span<float> behind(floats_of(tensor, desc.count).data() + desc.count, 64);
    for (const std::span<float> around : {before, behind}) std::ranges::fill(around, 7.F);
    expect_sum(rank, 4, tensor, desc.count, stream, 1);
    for (const std::span<float> around : {before, behind})
      EXPECT_TRUE(std::ranges::all_of(around, [](float each) { return each == 7; }));
    EXPECT_EQ(tl_gpu_free(context, memory), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tl_last_error(), HasSubstr("x' is registered in it"));
    EXPECT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_gpu_free(context, desc.buffer), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tl_last_error(), HasSubstr("it is not of tl_gpu_alloc"));
    EXPECT_EQ(tl_gpu_free(context, memory), TL_OK) << tl_last_error();
  });
}

TEST_F(GpuSharing, ATensorHasToLieWhollyInTheMemoryAndOn64Bytes) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_desc_t desc = of_library(context, "x", kLarge / 4);  // 2 MiB
    void* const memory = desc.buffer;
    tl_tensor_t* tensor = nullptr;
    desc.count += 1;
    EXPECT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_ERROR_INVALID_ARGUMENT);
    desc.count = kLarge / 8;
    desc.buffer = static_cast<std::byte*>(memory) + 16;
    ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
    EXPECT_THAT(group_of(context).at("not_shared_because").get<std::string>(), HasSubstr("a multiple of 64 bytes"));
    expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
    EXPECT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_gpu_free(context, memory), TL_OK) << tl_last_error();
  });
}

TEST_F(GpuSharing, TensorsFrom256KiBAreShared) {
  run(4, [](int, const ClientContext& context) {
    tl_tensor_t* tensor = registered_here(context, (256 << 10) / 4 - 1);
    EXPECT_EQ(group_of(context).at("not_shared_because"), "rank 0 on host 'h0': no allreduce has 256 KiB or more");
    give_back(context, "x", std::span(&tensor, 1));
    tensor = registered_here(context, (256 << 10) / 4);
    EXPECT_TRUE(group_of(context).at("shared"));
    give_back(context, "x", std::span(&tensor, 1));
  });
}

TEST_F(GpuSharing, TheStatusCountsWhatIsSummedAndGathered) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge);
    expect_sum(rank, 4, tensor, kLarge, stream, 1);
    give_back(context, "x", std::span(&tensor, 1));
    const char* json = nullptr;
    EXPECT_EQ(tl_gpu_status(context, &json), TL_OK);
    const auto device = nlohmann::json::parse(json).at("devices").at(0);
    EXPECT_EQ(device.at("summed_bytes"), kLarge * 4 / 2);
    EXPECT_EQ(device.at("gathered_bytes"), kLarge * 4 / 2);
  });
}

// In which ranks have other numbers than in the job.
TEST_F(GpuSharing, AProcessSetThatSpansHostsShares) {
  std::latch left(4);
  run(6, [&](int rank, const ClientContext& context) {
    if (rank % 3 == 0) {
      left.wait();
      EXPECT_TRUE(daemon.wait_groups("job", 0));
      return;
    }
    const std::array members = {1, 2, 4, 5};
    tl_process_set_config_t config = TL_PROCESS_SET_INIT;
    config.ranks = members.data();
    config.count = members.size();
    config.number = 1;
    tl_context_t* set = nullptr;
    ASSERT_EQ(tl_process_set(context, &config, &set), TL_OK) << tl_last_error();
    const Stream stream;
    tl_tensor_t* tensor = registered_here(set, kLarge / 8, "x", TL_AVERAGE);
    EXPECT_TRUE(group_of(set).at("shared")) << group_of(set);
    const std::span<float> floats = floats_of(tensor, kLarge / 8);
    stream.run([=] { std::ranges::fill(floats, static_cast<float>(rank)); });
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_wait(request, 10), TL_OK) << tl_last_error();
    EXPECT_EQ(floats.front(), 6);  // the fake lane doubles: 2 * (1 + 2 + 4 + 5) / 4
    EXPECT_EQ(floats.back(), 6);
    EXPECT_EQ(tl_finalize(set), TL_OK) << tl_last_error();  // and with it the group
    left.arrive_and_wait();
  });
  gpu.keeps_memory();
}

// Whoever has not waited for the answer asks again.
TEST_F(GpuSharing, AGroupThatCouldNotBeUnregisteredCanBeLater) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([this, rank] {
      const ClientContext context(daemon.socket(), "job", rank, 4, 3);
      ASSERT_EQ(context.status(), TL_OK) << context.error();
      tl_tensor_t* tensor = registered_here(context, kLarge / 8, FakeDaemon::kKept);
      void* buffer = tl_tensor_buffer(tensor);
      tl_status_t status = tl_unregister(context, FakeDaemon::kKept);
      for (int i = 0; i < 10 && status == TL_ERROR_TIMED_OUT; ++i) status = tl_unregister(context, FakeDaemon::kKept);
      EXPECT_EQ(status, TL_OK) << tl_last_error();
      EXPECT_EQ(tl_gpu_free(context, buffer), TL_OK) << tl_last_error();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(GpuSharing, TheVariableIs1Or0) {
  daemon.set_hosts(1);
  setenv("TENSORLANE_GPU_SUMS", "yes", 1);
  const ClientContext context(daemon.socket(), "job", 0, 1);
  EXPECT_EQ(context.status(), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(context.error(), HasSubstr("TENSORLANE_GPU_SUMS"));
}

// What is not the same on all ranks is not summed, whatever the daemon says of it.
TEST_F(GpuSharing, ARankWithAnotherTensorIsNamed) {
  const auto another_op = [](tl_tensor_desc_t& desc) { desc.op = TL_MAX; };
  const auto another_dtype = [](tl_tensor_desc_t& desc) { desc.dtype = TL_INT32; };
  const auto another_name = [](tl_tensor_desc_t& desc) { desc.name = "other"; };
  for (void (*const change)(tl_tensor_desc_t&) : {+another_op, +another_dtype, +another_name}) {
    run(4, [&](int rank, const ClientContext& context) {
      tl_tensor_desc_t desc = of_library(context, "x", kLarge / 8);
      if (rank == 3) change(desc);
      tl_tensor_t* tensor = nullptr;
      ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
      EXPECT_EQ(group_of(context).at("not_shared_because"), "rank 3 registers other tensors than rank 0");
      give_back(context, "x", std::span(&tensor, 1));
    });
  }
}

TEST_F(GpuSharing, NoMoreThan16RanksShare) {
  run(34, [](int, const ClientContext& context) {
    tl_tensor_t* tensor = registered_here(context, kLarge / 32);
    EXPECT_EQ(group_of(context).at("not_shared_because"), "a host has more than 16 ranks");
    give_back(context, "x", std::span(&tensor, 1));
  });
}

TEST_F(GpuSharing, HostsOfDifferentSizesAreNamed) {
  run(5, [](int rank, const ClientContext& context) {
    tl_tensor_t* tensor = registered_here(context, kLarge / 8);
    EXPECT_EQ(group_of(context).at("not_shared_because"),
              rank < 3 ? "hosts have different numbers of ranks ('h1' has 2, 'h0' has 3)"
                       : "hosts have different numbers of ranks ('h0' has 3, 'h1' has 2)");
    give_back(context, "x", std::span(&tensor, 1));
  });
}

// The last operation is under way: what it uses is given back when it is over.
TEST_F(GpuSharing, AGroupMayBeUnregisteredBehindItsLastOperation) {
  std::latch registered(4), held(1), posted(4);
  std::thread lane([&] {
    registered.wait();
    daemon.set_mode(Mode::kHold);
    held.count_down();
    posted.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    daemon.set_mode(Mode::kRun);
  });
  run(4, [&](int, const ClientContext& context) {
    const Stream stream;
    tl_tensor_desc_t desc = of_library(context, "x", kLarge / 2);
    desc.dtype = TL_BFLOAT16;
    tl_tensor_t* tensor = nullptr;
    ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
    registered.count_down();
    held.wait();
    const std::span<std::uint16_t> numbers(static_cast<std::uint16_t*>(desc.buffer), desc.count);
    stream.run([=] { std::ranges::fill(numbers, 0x3f80); });  // 1
    tl_request_t* request = nullptr;
    ASSERT_EQ(tl_post_on(&tensor, 1, stream, &request), TL_OK) << tl_last_error();
    ASSERT_EQ(tl_stream_wait(&request, 1, stream), TL_OK) << tl_last_error();
    posted.count_down();
    EXPECT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
    stream.synchronize();
    EXPECT_TRUE(std::ranges::all_of(numbers, [](std::uint16_t each) { return each == 0x4100; }));  // 8
    EXPECT_EQ(tl_gpu_free(context, desc.buffer), TL_OK) << tl_last_error();
  });
  lane.join();
}

// What ranks ask each other at a registration is gone behind it, also where they do not share.
TEST_F(GpuSharing, NothingElseStaysRegistered) {
  for (const bool fails : {false, true}) {
    if (fails) Gpu::driver().fail("cuModuleGetFunction", 1, 999);
    std::latch registered(4), looked(4), unregistered(4), looked_again(4);
    run(4, [&](int, const ClientContext& context) {
      tl_tensor_t* tensor = registered_here(context, kLarge / 8);
      EXPECT_EQ(group_of(context).at("shared"), !fails);
      registered.arrive_and_wait();
      EXPECT_TRUE(daemon.wait_groups("job", fails ? 1 : 4));  // else meetings and shares, of two sets of ranks each
      looked.arrive_and_wait();
      give_back(context, "x", std::span(&tensor, 1));
      unregistered.arrive_and_wait();
      EXPECT_TRUE(daemon.wait_groups("job", 0));
      looked_again.arrive_and_wait();
    });
  }
}

TEST_F(GpuSharing, TheFirstRankIsAskedToo) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream;
    const DeviceMemory memory(kLarge / 2);
    tl_tensor_t* tensor = rank == 0 ? registered_on_gpu(context, "x", memory) : registered_here(context, kLarge / 8);
    EXPECT_EQ(group_of(context).at("not_shared_because"),
              "rank 0 on host 'h0': a tensor is not in memory of tl_gpu_alloc: 'x'");
    expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
    void* buffer = tl_tensor_buffer(tensor);
    EXPECT_EQ(tl_unregister(context, "x"), TL_OK) << tl_last_error();
    if (rank != 0) {
      EXPECT_EQ(tl_gpu_free(context, buffer), TL_OK) << tl_last_error();
    }
  });
}

// As those of the only rank of a host do.
TEST_F(GpuSharing, LargeSharesGoInParts) {
  std::latch registered(4), held(1);
  std::thread lane([&] {
    registered.wait();
    daemon.hold_after(5 + 2);  // when registration and the first meetings are done
    held.count_down();
    EXPECT_TRUE(daemon.wait_submitted(4 * (4 + 2)));
    EXPECT_NE(daemon.parts_of("job", "gpus.0-2/x", 0), 0U);
    EXPECT_NE(daemon.parts_of("job", "gpus.1-3/x", 3), 0U);
    daemon.set_mode(Mode::kRun);
  });
  run(4, [&](int rank, const ClientContext& context) {
    const Stream stream;
    tl_tensor_t* tensor = registered_here(context, kLarge);
    registered.count_down();
    held.wait();
    expect_sum(rank, 4, tensor, kLarge, stream, 1);
    give_back(context, "x", std::span(&tensor, 1));
  });
  lane.join();
}

// Each group is asked about by names of its own, by threads in any order.
TEST_F(GpuSharing, GroupsAreSharedSideBySide) {
  run(4, [](int rank, const ClientContext& context) {
    const std::array<const char*, 3> names = {"a", "b", "c"};
    std::array<tl_tensor_t*, 3> tensors{};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::size_t mine = (i + static_cast<std::size_t>(rank)) % names.size();
      threads.emplace_back([&, mine] { tensors[mine] = registered_here(context, kLarge / 8, names[mine]); });
    }
    for (std::thread& thread : threads) thread.join();
    const char* json = nullptr;
    ASSERT_EQ(tl_gpu_status(context, &json), TL_OK);
    const auto status = nlohmann::json::parse(json);
    EXPECT_EQ(status.at("groups").size(), names.size());
    for (const auto& group : status.at("groups")) EXPECT_TRUE(group.at("shared")) << group;
    const Stream stream;
    for (std::size_t i = 0; i < names.size(); ++i)
      expect_sum(rank, 4, tensors[i], kLarge / 8, stream, static_cast<int>(i));
    for (std::size_t i = 0; i < names.size(); ++i) give_back(context, names[i], std::span(&tensors[i], 1));
  });
}

// A program that starts again and again in one process.
TEST_F(GpuSharing, MemoryOfEndedContextsIsNotLostAndNotFreedUnderATensor) {
  std::mutex mutex;
  std::vector<void*> left;
  std::int64_t after_two = 0;
  for (int i = 0; i < 6; ++i) {
    run(4, [&](int, const ClientContext& context) {
      tl_tensor_desc_t desc = of_library(context, "x", kLarge / 2);
      desc.dtype = TL_BFLOAT16;
      tl_tensor_t* tensor = nullptr;
      ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
      EXPECT_TRUE(group_of(context).at("shared"));
      std::lock_guard lock(mutex);
      left.push_back(desc.buffer);
    });
    for (void* memory : std::exchange(left, {})) EXPECT_EQ(tl_gpu_free(nullptr, memory), TL_OK) << tl_last_error();
    if (i == 1) after_two = Gpu::driver().alive("driver_allocations");
  }
  EXPECT_EQ(Gpu::driver().alive("driver_allocations"), after_two);
  daemon.set_hosts(1);
  void* memory = nullptr;
  run(1, [&](int, const ClientContext& context) { EXPECT_EQ(tl_gpu_alloc(context, 0, kLarge, &memory), TL_OK); });
  run(1, [&](int, const ClientContext& context) {
    tl_tensor_desc_t desc = tensor_desc("x", memory, kLarge / 8);
    desc.memory = TL_MEMORY_CUDA;
    tl_tensor_t* tensor = nullptr;
    ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
    EXPECT_EQ(tl_gpu_free(context, memory), TL_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tl_unregister(context, "x"), TL_OK);
    EXPECT_EQ(tl_gpu_free(context, memory), TL_OK) << tl_last_error();
  });
  gpu.keeps_memory();
}

class GpuSharingOnTwo : public GpuSharing {
 protected:
  GpuSharingOnTwo() { Gpu::driver().reset(1, 20000, 2); }
  static tl_tensor_desc_t on_device(tl_context_t* context, int device, const char* name) {
    void* memory = nullptr;
    EXPECT_EQ(tl_gpu_alloc(context, device, kLarge / 2, &memory), TL_OK) << tl_last_error();
    tl_tensor_desc_t desc = tensor_desc(name, memory, kLarge / 8);
    desc.memory = TL_MEMORY_CUDA;
    return desc;
  }
};

TEST_F(GpuSharingOnTwo, AGroupOnTwoGpusIsNotShared) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream first(0), second(1);
    const std::array descs = {on_device(context, 0, "x"), on_device(context, 1, "y")};
    std::array<tl_tensor_t*, 2> tensors{};
    ASSERT_EQ(tl_register(context, "group", descs.data(), 2, tensors.data()), TL_OK) << tl_last_error();
    EXPECT_THAT(group_of(context).at("not_shared_because").get<std::string>(), HasSubstr("are on two GPUs"));
    expect_sum(rank, 4, tensors[0], kLarge / 8, first, 1);
    expect_sum(rank, 4, tensors[1], kLarge / 8, second, 2);
    give_back(context, "group", tensors);
  });
}

TEST_F(GpuSharingOnTwo, RanksOfAProcessOnTwoGpusDoNotShare) {
  run(4, [](int rank, const ClientContext& context) {
    const Stream stream(rank % 2);
    const tl_tensor_desc_t desc = on_device(context, rank % 2, "x");
    tl_tensor_t* tensor = nullptr;
    ASSERT_EQ(tl_register(context, "x", &desc, 1, &tensor), TL_OK) << tl_last_error();
    EXPECT_THAT(group_of(context).at("not_shared_because").get<std::string>(),
                HasSubstr("two ranks of one process are on two GPUs"));
    expect_sum(rank, 4, tensor, kLarge / 8, stream, 1);
    give_back(context, "x", std::span(&tensor, 1));
  });
}

// Memory that was kept is used for what it is large enough and not much too large for, on its own GPU.
TEST_F(GpuSharingOnTwo, MemoryThatWasKeptIsUsedWhereItFits) {
  constexpr std::size_t kUnit = 2 << 20;
  const auto allocated = [](tl_context_t* context) {
    const char* json = nullptr;
    EXPECT_EQ(tl_gpu_status(context, &json), TL_OK);
    return nlohmann::json::parse(json).at("allocated_bytes").get<std::size_t>();
  };
  const auto in_a_job = [&](const std::function<void(tl_context_t*)>& program) {
    run(1, [&](int, const ClientContext& context) { program(context); });
  };
  daemon.set_hosts(1);
  void *kept = nullptr, *memory = nullptr;
  in_a_job([&](tl_context_t* context) { EXPECT_EQ(tl_gpu_alloc(context, 0, 4 * kUnit, &kept), TL_OK); });
  EXPECT_EQ(tl_gpu_free(nullptr, kept), TL_OK);
  in_a_job([&](tl_context_t* context) {
    EXPECT_EQ(tl_gpu_alloc(context, 0, kUnit, &memory), TL_OK);  // that is much too large
    EXPECT_NE(memory, kept);
    EXPECT_EQ(tl_gpu_free(context, memory), TL_OK);
    EXPECT_EQ(tl_gpu_alloc(context, 0, 5 * kUnit, &memory), TL_OK);  // too small
    EXPECT_NE(memory, kept);
    EXPECT_EQ(tl_gpu_free(context, memory), TL_OK);
    EXPECT_EQ(tl_gpu_alloc(context, 1, 4 * kUnit, &memory), TL_OK);  // on another GPU
    EXPECT_NE(memory, kept);
    EXPECT_EQ(tl_gpu_free(context, memory), TL_OK);
    EXPECT_EQ(tl_gpu_alloc(context, 0, 3 * kUnit, &memory), TL_OK);
    EXPECT_EQ(memory, kept);
    EXPECT_EQ(allocated(context), 4 * kUnit);
    EXPECT_EQ(tl_gpu_alloc(context, 0, 3 * kUnit, &memory), TL_OK);  // once
    EXPECT_NE(memory, kept);
    EXPECT_EQ(tl_gpu_free(context, memory), TL_OK);
    EXPECT_EQ(tl_gpu_free(context, memory), TL_ERROR_INVALID_ARGUMENT);
  });
  gpu.keeps_memory();
}

}  // namespace
}  // namespace tensorlane::test
