// Regions, segments, and the faults they survive.
#include "daemon/memory/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "daemon/memory/fault_guard.h"
#include "daemon/memory/region_table.h"

namespace tensorlane::memory {
namespace {

using testing::HasSubstr;

TEST(RegionTable, ResolvesInsideAndNothingOutside) {
  RegionTable table(2);
  std::vector<std::byte> memory(1000);
  const Descriptor all = table.add(memory);
  EXPECT_EQ(all.length, 1000u);
  EXPECT_EQ(table.resolve(all).data(), memory.data());
  const auto part = table.resolve(all.slice(100, 900));
  EXPECT_EQ(part.data(), memory.data() + 100);
  EXPECT_EQ(part.size(), 900u);
  EXPECT_TRUE(table.resolve(all.slice(100, 901)).empty());
  EXPECT_TRUE(table.resolve(all.slice(1001, 0)).empty());
  EXPECT_TRUE(table.resolve(all.slice(500, 0)).empty());
  EXPECT_TRUE(table.resolve(all.slice(~std::uint64_t{0}, 2)).empty()) << "a sum that overflows";
  EXPECT_TRUE(table.resolve(all.slice(2, ~std::uint64_t{0})).empty());
  EXPECT_TRUE(table.resolve(Descriptor{}).empty());
  EXPECT_TRUE(table.resolve(Descriptor{77, 1, 0, 1}).empty());
}

TEST(RegionTable, OldDescriptorsResolveToNothing) {
  RegionTable table(1);
  std::vector<std::byte> first(10), second(10);
  const Descriptor old = table.add(first);
  EXPECT_EQ(table.add(second).generation, 0u) << "full";
  table.remove(old.region);
  EXPECT_TRUE(table.resolve(old).empty());
  const Descriptor fresh = table.add(second);
  EXPECT_EQ(fresh.region, old.region);
  EXPECT_TRUE(table.resolve(old).empty());
  EXPECT_EQ(table.resolve(fresh).data(), second.data());
  EXPECT_EQ(table.size(), 1u);
}

const Owner kOwner{1000, "job"};

TEST(ArenaPool, SegmentsAreSealedZeroedAndAccounted) {
  ArenaPool pool({mib(8), mib(1)});
  {
    auto segment = pool.create(kOwner, 100'000);
    ASSERT_TRUE(segment.ok()) << segment.status().to_string();
    const auto bytes = (*segment)->bytes();
    EXPECT_EQ(bytes.size() % 4096, 0u);
    EXPECT_GE(bytes.size(), 100'000u);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
    const int fd = *(*segment)->share();
    EXPECT_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
    EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_NE(ftruncate(fd, 0), 0);
    EXPECT_NE(ftruncate(fd, 1 << 24), 0);
    EXPECT_FALSE((*segment)->damaged());
    EXPECT_EQ(pool.in_use().value, bytes.size());
    ASSERT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0)
        << "law 16: these seals do not stop it";
    EXPECT_TRUE((*segment)->damaged());
    ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
    EXPECT_FALSE((*segment)->check_sealed().ok());
    close(fd);
  }
  EXPECT_EQ(pool.in_use().value, 0u);
}

// Many of them, of many users, are populated at once: nobody waits for all of another one's.
TEST(ArenaPool, ASegmentIsPopulatedInPieces) {
  ArenaPool pool({mib(64), mib(1)});
  auto segment = pool.make(kOwner, 3 << 20);
  ASSERT_TRUE(segment.ok()) << segment.status().to_string();
  EXPECT_TRUE((*segment)->damaged()) << "nothing is there yet";
  for (const bool last : {false, false, true}) {
    const Result<bool> there = (*segment)->populate(1 << 20);
    ASSERT_TRUE(there.ok()) << there.status().to_string();
    EXPECT_EQ(*there, last);
  }
  EXPECT_FALSE((*segment)->damaged());
  const int fd = *(*segment)->share();
  EXPECT_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
  close(fd);
}

// A client that keeps what it has, and comes again and again.
TEST(ArenaPool, ASegmentIsChargedUntilItsClientHasLetGoOfIt) {
  constexpr std::uint64_t kBytes = 5 << 20;
  ArenaPool pool({mib(8), mib(1)});
  Ledger numbers({.what = "segments", .key = "the test", .total = 1});
  const auto share_and_end = [&] {
    auto segment = pool.create(kOwner, kBytes);
    EXPECT_TRUE(segment.ok()) << segment.status().to_string();
    Result<Ledger::Charge> number = numbers.take(kOwner, 1);
    (*segment)->hold(std::move(*number));
    return *(*segment)->share();
  };
  const auto expect_kept = [&](const char* by) {
    pool.reclaim();
    EXPECT_TRUE(pool.has_leftovers()) << by;
    EXPECT_EQ(pool.in_use(), mib(5)) << by;
    EXPECT_EQ(numbers.in_use(), 1U) << by;
    EXPECT_EQ(pool.make(kOwner, kBytes).status().code(), Code::kResourceExhausted) << by;
  };
  const int open_one = share_and_end();
  expect_kept("a descriptor");
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, open_one, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  close(open_one);
  expect_kept("a mapping");
  munmap(mapped, kBytes);
  EXPECT_TRUE(pool.has_leftovers()) << "nobody has looked";
  pool.reclaim();
  EXPECT_FALSE(pool.has_leftovers());
  EXPECT_EQ(pool.in_use(), Bytes());
  EXPECT_EQ(numbers.in_use(), 0U);
  const int named = share_and_end();
  const int path = open(("/proc/self/fd/" + std::to_string(named)).c_str(), O_PATH | O_CLOEXEC);
  close(named);
  expect_kept("a path, by which it can be opened again");
  close(path);
  const int again = share_and_end();
  mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, again, 4096);
  close(again);
  expect_kept("one page, for reading");
  munmap(mapped, 4096);
  EXPECT_TRUE(pool.make(kOwner, kBytes).ok()) << "it was let go of just now";
  EXPECT_EQ(pool.in_use(), Bytes());
}

// More segments at once than the kernel has words for.
TEST(ArenaPool, SegmentsThatGoAllAtOnceAreAllGivenBack) {
  std::ifstream setting("/proc/sys/fs/inotify/max_queued_events");
  std::size_t most = 0;
  ASSERT_TRUE(setting >> most);
  const std::size_t count = most / 2 + 100;  // a file that is gone, and its watch, are an event each
  rlimit descriptors{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  if (descriptors.rlim_max < count + 100) GTEST_SKIP() << "needs " << count << " descriptors";
  const rlimit raised{descriptors.rlim_max, descriptors.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &raised), 0);
  ArenaPool pool({mib(512), mib(1)});
  std::vector<int> kept;
  for (std::size_t i = 0; i < count; ++i) {
    auto segment = pool.make(kOwner, 4096);
    ASSERT_TRUE(segment.ok()) << segment.status().to_string();
    kept.push_back(*(*segment)->share());
  }
  EXPECT_EQ(pool.in_use().value, count * 4096);
  for (const int fd : kept) close(fd);
  pool.reclaim();
  EXPECT_EQ(pool.in_use(), Bytes());
  EXPECT_FALSE(pool.has_leftovers());
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &descriptors), 0);
}

// Where there is none for a while, as when other programs of the user have all inotify instances that there are.
TEST(ArenaPool, SegmentsAreMadeOnceTheKernelHasAWatcherForThem) {
  ArenaPool pool({mib(8), mib(1)}, [] { return mib(8); });
  rlimit descriptors{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  const int next = fcntl(0, F_DUPFD_CLOEXEC, 0);
  close(next);
  const rlimit one_more{static_cast<rlim_t>(next) + 1, descriptors.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  const auto refused = pool.create(kOwner, 4096);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &descriptors), 0);
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_NE(refused.status().to_string().find("inotify_init1: "), std::string::npos) << refused.status().to_string();
  EXPECT_EQ(pool.in_use(), Bytes());
  EXPECT_TRUE(pool.create(kOwner, 4096).ok());
}

TEST(ArenaPool, NoHoleIsPunchedIntoASegmentThatIsInUse) {
  ArenaPool pool({mib(8), mib(1)});
  auto segment = pool.create(kOwner, 100'000);
  ASSERT_TRUE(segment.ok()) << segment.status().to_string();
  const int fd = *(*segment)->share();
  EXPECT_FALSE((*segment)->check_sealed().ok());
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_TRUE((*segment)->check_sealed().ok());
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0);
  EXPECT_FALSE((*segment)->damaged());
  close(fd);
}

// In a process that has not asked the kernel yet what it can seal.
TEST(ArenaPool, WhatTheKernelCanSealIsAskedAgainAfterAWantOfDescriptors) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto ask_twice = [] {
    ArenaPool pool({mib(8), mib(1)});
    const auto segment = pool.create(kOwner, 4096);
    rlimit descriptors{};
    getrlimit(RLIMIT_NOFILE, &descriptors);
    const rlimit none{0, descriptors.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const std::string without = (*segment)->check_sealed().to_string();
    setrlimit(RLIMIT_NOFILE, &descriptors);
    fprintf(stderr, "without: %s\nwith: %s\n", without.c_str(), (*segment)->check_sealed().to_string().c_str());
    _exit(0);
  };
  EXPECT_EXIT(ask_twice(), testing::ExitedWithCode(0),
              "without: .*memfd_create: Too many open files.*\nwith: an arena that its client has not sealed");
}

TEST(ArenaPool, RefusesWithTheLimitTheValueAndTheNeed) {
  ArenaPool pool({mib(8), mib(1)});
  EXPECT_EQ(pool.create(kOwner, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pool.create(kOwner, 9 << 20).status().to_string(),
            "memory over the daemon's limit: 9 MiB needed, memory_limit is 8 MiB: raise "
            "memory_limit or register less");
  auto five = pool.create(kOwner, 5 << 20);
  ASSERT_TRUE(five.ok());
  EXPECT_EQ(pool.create(kOwner, 4 << 20).status().to_string(),
            "memory over the daemon's limit: 4 MiB needed, 5 MiB of memory_limit = 8 MiB in use: raise "
            "memory_limit or register less");
  EXPECT_EQ(pool.in_use(), mib(5));
  ArenaPool poor({mib(1024), mib(100)}, [] { return mib(110); });
  EXPECT_EQ(poor.create(kOwner, 11 << 20).status().to_string(),
            "this host is short of memory: 11 MiB needed, 110 MiB available, memory_keep_free is 100 MiB: free memory "
            "on this host or lower "
            "memory_keep_free");
  EXPECT_TRUE(poor.create(kOwner, 10 << 20).ok());
  EXPECT_GT(available_memory(), mib(16));
}

TEST(AvailableMemory, IsKnownWhereDescriptorsHaveRunOut) {
  EXPECT_GT(available_memory(), mib(16));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Bytes available = available_memory();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GT(available, mib(16));
}

// A mapping whose pages can go: a file that is truncated under it.
struct Truncated {
  explicit Truncated(std::size_t pages) : bytes(pages * 4096), fd(memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    base = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    std::memset(base, 0x55, bytes);
  }
  ~Truncated() {
    munmap(base, bytes);
    close(fd);
  }
  std::size_t bytes;
  int fd;
  std::byte* base;
};

TEST(FaultGuard, AFaultBecomesZerosAndAMark) {
  Truncated broken(16), whole(1);
  const auto guard = FaultGuard::make({broken.base, broken.bytes});
  const auto other = FaultGuard::make({whole.base, whole.bytes});
  ASSERT_TRUE(guard && other);
  EXPECT_EQ(broken.base[5 * 4096], std::byte{0x55});
  ASSERT_EQ(ftruncate(broken.fd, 4096), 0);
  EXPECT_FALSE(guard->faulted());
  EXPECT_EQ(broken.base[5 * 4096 + 7], std::byte{0});
  broken.base[9 * 4096] = std::byte{1};
  EXPECT_EQ(broken.base[0], std::byte{0x55}) << "what is left is left alone";
  EXPECT_TRUE(guard->faulted());
  EXPECT_FALSE(other->faulted());
}

TEST(FaultGuard, ManyThreadsFaultAtOnce) {
  constexpr int kThreads = 4, kPages = 64;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int round = 0; round < 20; ++round) {
        Truncated broken(kPages);
        const auto guard = FaultGuard::make({broken.base, broken.bytes});
        ASSERT_EQ(ftruncate(broken.fd, 0), 0);
        for (int page = 0; page < kPages; ++page) ASSERT_EQ(broken.base[page * 4096], std::byte{0});
        ASSERT_TRUE(guard->faulted());
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

[[noreturn]] void fault_outside() {
  signal(SIGBUS, SIG_DFL);  // a sanitizer's handler would say more than the signal
  const Truncated guarded(1), bare(1);
  const auto guard = FaultGuard::make({guarded.base, guarded.bytes});
  (void)!ftruncate(bare.fd, 0);
  _exit(static_cast<int>(*const_cast<volatile std::byte*>(bare.base)));
}

TEST(FaultGuardDeathTest, AFaultElsewhereStillKills) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fault_outside(), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace tensorlane::memory
