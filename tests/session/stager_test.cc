// The thread that copies between GPUs and host memory, by itself: copies that do not end, and transfers that are
// stopped wherever they are.
#include "client-lib/src/cuda/stager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu_program.h"

namespace tensorlane::test {
namespace {

using client::cuda::Device;
using client::cuda::Driver;
using client::cuda::Stager;
using client::cuda::Transfer;
using testing::HasSubstr;

// Keeps what the stager says; stops everything when a copy cannot be made, as the library does.
class Listener final : public Stager::Listener {
 public:
  void read(Transfer& transfer, std::uint64_t parts, bool all) override {
    std::lock_guard lock(mutex_);
    parts_read_[&transfer] |= parts;
    if (all) read_[&transfer] = {};
  }
  void over(Transfer& transfer, const Status& status) override {
    EXPECT_EQ(std::atomic_ref(*transfer.word).load(), transfer.value);  // before it can be used again
    ++overs;
    note(over_, transfer, status);
    std::lock_guard lock(under_way);
    if (gives_back) transfer.device->end(transfer);
  }
  void meet(Transfer&) override { ADD_FAILURE() << "nothing is shared here"; }
  void failed(const Status& status) override {
    {
      std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      failure_ = status;
    }
    for (Transfer* transfer : stopped_by_failure) stager->stop(*transfer, status, false);
  }
  bool job_has_failed() override { return false; }
  void pause(Duration longest) override { std::this_thread::sleep_for(std::chrono::nanoseconds(longest.value)); }

  void wake() override {}

  bool was_read(const Transfer& transfer) { return has(read_, transfer); }
  std::uint64_t parts_read(const Transfer& transfer) {
    std::lock_guard lock(mutex_);
    return parts_read_[&transfer];
  }
  bool is_over(const Transfer& transfer) { return has(over_, transfer); }
  Status end_of(const Transfer& transfer) {
    std::lock_guard lock(mutex_);
    return over_.at(&transfer);
  }
  // It is used again.
  void forget(const Transfer& transfer) {
    std::lock_guard lock(mutex_);
    over_.erase(&transfer);
    read_.erase(&transfer);
  }
  Status failure() {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  std::atomic<int> overs{0};
  bool gives_back = false;  // what is over, at once, as the library does
  std::mutex under_way;     // what is given back is not stopped, as by the library's lock
  Stager* stager = nullptr;
  std::vector<Transfer*> stopped_by_failure;

 private:
  using Ends = std::map<const Transfer*, Status>;
  void note(Ends& ends, const Transfer& transfer, const Status& status) {
    std::lock_guard lock(mutex_);
    ends[&transfer] = status;
  }
  bool has(const Ends& ends, const Transfer& transfer) {
    std::lock_guard lock(mutex_);
    return ends.contains(&transfer);
  }

  std::mutex mutex_;
  Ends read_, over_;
  std::map<const Transfer*, std::uint64_t> parts_read_;
  Status failure_;
};

constexpr std::size_t kBytes = 3 << 20;
constexpr client::cuda::Pieces::Layout kInParts{protocol::part_bytes(kBytes), 64, 1};

class StagerTest : public testing::Test {
 protected:
  explicit StagerTest(Stager::Patience patience = {milliseconds(200), milliseconds(200)}) {
    Result<const Driver*> driver = Driver::load();
    EXPECT_TRUE(driver.ok()) << driver.status().to_string();
    Result<std::unique_ptr<Device>> opened = Device::open(**driver, 0);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    device = std::move(*opened);
    const client::cuda::Current current(*device);
    EXPECT_EQ(device->driver().host_register(staging.data(), staging.size(), client::cuda::kHostRegisterPortable), 0);
    stager = std::make_unique<Stager>(listener, patience);
    listener.stager = stager.get();
  }
  ~StagerTest() override {
    Gpu::driver().resume_all_streams();
    stager.reset();
    for (const FakeCudaStream& stream : Gpu::driver().all_streams()) Gpu::driver().stream_synchronize(stream.handle);
    const client::cuda::Current current(*device);
    EXPECT_EQ(device->driver().host_unregister(staging.data()), 0);
  }

  Transfer& begin(const Stream& stream) {
    Result<Transfer*> begun = device->begin(static_cast<client::cuda::Stream_>(static_cast<void*>(stream)), "x");
    EXPECT_TRUE(begun.ok()) << begun.status().to_string();
    Transfer& transfer = **begun;
    transfer.in = transfer.out = {memory.address(), staging.data(), kBytes};
    return transfer;
  }
  // Bytes that copies which are over have brought to the GPU.
  static std::uint64_t brought_in() {
    std::uint64_t bytes = 0;
    for (const FakeCudaCopy& copy : Gpu::driver().all_copies())
      bytes += copy.direction == kFakeCudaIn && copy.ended != 0 ? copy.bytes : 0;
    return bytes;
  }
  std::uint32_t word(const Transfer& transfer) const { return std::atomic_ref(*transfer.word).load(); }

  const Gpu gpu;
  const DeviceMemory memory{kBytes};
  std::vector<std::byte> staging = std::vector<std::byte>(kBytes);
  Listener listener;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stager> stager;
};

TEST_F(StagerTest, ATransferGoesOutAndComesIn) {
  const Stream stream;
  Transfer& transfer = begin(stream);
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return listener.was_read(transfer); }));
  EXPECT_FALSE(listener.is_over(transfer));
  EXPECT_NE(word(transfer), transfer.value);
  stager->arrived(transfer);
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_TRUE(listener.end_of(transfer).ok());
  EXPECT_EQ(word(transfer), transfer.value);
  EXPECT_EQ(Gpu::driver().all_copies().size(), 6U);
}

TEST_F(StagerTest, ACopyThatDoesNotEndIsAnErrorThatNamesTheWayOut) {
  const Stream stream;
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  Transfer& transfer = begin(stream);
  listener.stopped_by_failure = {&transfer};
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_THAT(listener.failure().to_string(), HasSubstr("a copy has not ended for 200 ms: tensor 'x', GPU 0"));
  EXPECT_THAT(listener.failure().to_string(), HasSubstr("set TENSORLANE_STREAM_WAIT=0"));
  EXPECT_THAT(listener.end_of(transfer).to_string(), HasSubstr("may yet write to it"));
  EXPECT_EQ(word(transfer), transfer.value);  // no stream hangs, though nothing could be filled
}

TEST_F(StagerTest, ATransferIsStoppedBetweenItsCopies) {
  const Stream stream;
  Transfer& transfer = begin(stream);
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return listener.was_read(transfer); }));
  stager->stop(transfer, Status(Code::kAborted, "it is over"), true);
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_EQ(listener.end_of(transfer).what(), "it is over");
  EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte each) { return each == std::byte{0xff}; }));
  stager->arrived(transfer);  // is too late
}

class PatientStagerTest : public StagerTest {
 protected:
  PatientStagerTest() : StagerTest({seconds(60), seconds(60)}) {}
};

TEST_F(PatientStagerTest, CopiesThatAreUnderWayEndBeforeAStoppedTransferIsOver) {
  const Stream stream;
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  Transfer& transfer = begin(stream);
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == 2; }));
  stager->stop(transfer, Status(Code::kAborted, "it is over"), false);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(listener.is_over(transfer));
  Gpu::driver().resume_all_streams();
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_EQ(listener.end_of(transfer).to_string(), Status(Code::kAborted, "it is over").to_string());
  EXPECT_EQ(Gpu::driver().all_copies().size(), 2U);  // and none begins
  EXPECT_EQ(word(transfer), transfer.value);
}

// With its last copies in flight: they bring the result, and yet it was stopped.
TEST_F(PatientStagerTest, ATransferThatIsStoppedDuringItsLastCopiesHasNotEndedWell) {
  const Stream stream;
  Transfer& transfer = begin(stream);
  transfer.out.bytes = 2 * Stager::kSlice;
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return listener.was_read(transfer); }));
  Gpu::driver().hold_all_streams();
  stager->arrived(transfer);
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == 5; }));
  stager->stop(transfer, Status(Code::kAborted, "it is over"), false);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(listener.is_over(transfer));
  Gpu::driver().resume_all_streams();
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_EQ(listener.end_of(transfer).what(), "it is over");
  EXPECT_EQ(Gpu::driver().all_copies().size(), 5U);
}

// All of the result may be on the GPU before it is said that this was all.
TEST_F(StagerTest, PartsThatAreInPlaceDoNotEndATransfer) {
  const Stream stream;
  Transfer& transfer = begin(stream);
  transfer.layout = kInParts;
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return listener.was_read(transfer); }));
  const std::size_t before = Gpu::driver().all_copies().size();
  stager->placed(transfer, ~std::uint64_t{0});
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == before + 3; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(listener.is_over(transfer));
  stager->arrived(transfer);
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_TRUE(listener.end_of(transfer).ok());
  EXPECT_EQ(Gpu::driver().all_copies().size(), before + 3);
}

// Copies of both directions are forgotten: what uses the transfer again does not hear of them.
TEST_F(StagerTest, AfterCopiesOfBothDirectionsThatDidNotEndOthersDo) {
  const Stream stream;
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  Transfer& transfer = begin(stream);
  transfer.layout = kInParts;
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == 2; }));
  stager->placed(transfer, std::uint64_t{1} << 63);  // behind what is being read
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == 3; }));
  stager->stop(transfer, Status(Code::kAborted, "it is over"), false);
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_THAT(listener.end_of(transfer).to_string(), HasSubstr("may yet write to it"));
  device->end(transfer);
  Gpu::driver().resume_all_streams();
  Gpu::synchronize_copies();
  listener.forget(transfer);
  Transfer& next = begin(stream);
  ASSERT_EQ(&next, &transfer);
  stager->add(next);
  ASSERT_TRUE(eventually([&] { return listener.was_read(next); }));
  stager->arrived(next);
  ASSERT_TRUE(eventually([&] { return listener.is_over(next); }));
  EXPECT_TRUE(listener.end_of(next).ok());
}

// The listener has heard of the end, and stops all that it takes to be under way: both before the stager looks.
TEST_F(StagerTest, AStopThatComesWithTheEndIsTooLate) {
  listener.gives_back = true;
  for (int i = 0; i < 30; ++i) {
    const Stream stream;
    Transfer& transfer = begin(stream);
    transfer.layout = kInParts;
    stager->add(transfer);
    ASSERT_TRUE(eventually([&] { return listener.was_read(transfer); }));
    stager->placed(transfer, ~std::uint64_t{0});
    ASSERT_TRUE(eventually([&] { return brought_in() == (i + 1) * kBytes; }));
    {
      std::lock_guard lock(listener.under_way);
      stager->arrived(transfer);
      stager->stop(transfer, Status(Code::kAborted, "it is over"), false);
    }
    ASSERT_TRUE(eventually([&] { return listener.overs > i; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(listener.overs, i + 1) << "was over twice";
    listener.forget(transfer);
  }
}

// The daemon has the result before the copy of what nobody needed is over: that copy's end is the transfer's.
TEST_F(StagerTest, AnEarlyEndWaitsForTheCopiesOut) {
  const Stream stream;
  Gpu::driver().hold_all_streams();
  Gpu::driver().resume_stream(stream);
  Transfer& transfer = begin(stream);
  constexpr std::size_t kIn = Stager::kSlice;
  transfer.in.bytes = kIn;
  transfer.out = {memory.address() + kIn, staging.data() + kIn, kBytes - kIn};
  stager->add(transfer);
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() == 1; }));
  stager->arrived(transfer);
  ASSERT_TRUE(eventually([&] { return Gpu::driver().all_copies().size() > 1; }));
  void* out = Gpu::driver().all_copies()[0].stream;
  for (const FakeCudaStream& each : Gpu::driver().all_streams()) {
    if (each.handle != out) Gpu::driver().resume_stream(each.handle);
  }
  ASSERT_TRUE(eventually([&] { return brought_in() == kBytes - kIn; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(listener.is_over(transfer));
  Gpu::driver().resume_all_streams();
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_TRUE(listener.end_of(transfer).ok()) << listener.end_of(transfer).to_string();
}

TEST_F(StagerTest, WhatAStreamHasYetToWriteIsNotFilledBefore) {
  const Stream stream;
  Gpu::driver().hold_stream(stream);
  stream.fill(memory, 1);
  Transfer& transfer = begin(stream);
  stager->add(transfer);
  stager->stop(transfer, Status(Code::kAborted, "it is over"), true);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // longer than the last copies may take
  EXPECT_FALSE(listener.is_over(transfer));
  Gpu::driver().resume_stream(stream);
  ASSERT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte each) { return each == std::byte{0xff}; }));
}

TEST_F(StagerTest, WithoutAWaitingStreamAStopNeedsNoStream) {
  const Stream stream;
  Gpu::driver().hold_stream(stream);
  Transfer& transfer = begin(stream);
  stager->stop(transfer, Status(Code::kAborted, "it is over"), false);  // was never added
  EXPECT_TRUE(eventually([&] { return listener.is_over(transfer); }));
  EXPECT_EQ(Gpu::driver().all_copies().size(), 0U);
}

TEST_F(StagerTest, ItsEndStopsWhatIsLeft) {
  const Stream stream;
  Gpu::driver().hold_stream(stream);
  Transfer& waiting = begin(stream);
  Transfer& poisoned = begin(stream);
  stager->add(waiting);
  stager->add(poisoned);
  stager->stop(poisoned, Status(Code::kAborted, "it is over"), true);
  stager.reset();
  EXPECT_TRUE(listener.is_over(waiting));
  EXPECT_TRUE(listener.is_over(poisoned));
  EXPECT_EQ(word(poisoned), poisoned.value);
}

}  // namespace
}  // namespace tensorlane::test
