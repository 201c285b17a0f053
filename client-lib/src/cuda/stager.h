// Copies between GPUs and pinned host memory, in slices, the most urgent first. What may go first is decided here and
// as late as possible: a GPU's streams keep the order in which copies were put on them, whatever their priorities.
//
// A transfer comes by add(). When its event has come, its input is copied out, and Listener::read() says so, part by
// part. The network's part follows; placed() says which parts of the result are in host memory, and arrived() that all
// of it is. They are copied in, and Listener::over() ends the transfer. stop() ends it early, from wherever it is.
//
// Of a tensor that the host's ranks share (shares.h), the ranks meet first, the input is summed before it is copied
// out, and when the result is copied in, they meet again, take each other's shares, and meet a last time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "client-lib/src/cuda/device.h"
#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::client::cuda {

class Stager {
 public:
  // A slice of this size still gets the bandwidth of the bus, and two of them are what an urgent one may have to wait
  // for: 80 us at 25 GB/s.
  static constexpr std::uint64_t kSlice = 1 << 20;
  // The same of copies between GPUs.
  static constexpr std::uint64_t kSliceOfPeer = 8 << 20;
  struct Patience {
    // A copy that takes longer will not end: another stream blocks it, or the GPU is gone.
    Duration copy = seconds(30);
    // How long a transfer that is stopped waits for its copies, which are on their way, and for the fill with 0xff.
    Duration last_copies = seconds(2);
    // How long the memory of a transfer that is stopped stays as it is, while the host's other ranks may be reading it,
    // if the daemon does not say that the job has failed: from then on nothing comes of what they read.
    Duration others = seconds(1);
  };

  // Called by the stager's thread, which holds no lock then.
  class Listener {
   public:
    virtual ~Listener() = default;
    // These parts of the input are in host memory; with `all` the rest is, too, and nothing more comes.
    virtual void read(Transfer& transfer, std::uint64_t parts, bool all) = 0;
    // The result is in the GPU's memory, or the transfer was stopped for `status`. Nothing of it is under way on the
    // GPU any more, its word has its value, and it is the listener's to give back (Device::end).
    virtual void over(Transfer& transfer, const Status& status) = 0;
    // This rank is ready to meet the others of its host; met() says that all are.
    virtual void meet(Transfer& transfer) = 0;
    // A copy cannot be made. Nothing more can be expected of this GPU: the listener stops what is under way.
    virtual void failed(const Status& status) = 0;
    // Whether the daemon knows that the job has failed.
    virtual bool job_has_failed() = 0;
    // Looks for results that have come from the network, and calls arrived() for them; sleeps for at most `longest`
    // where there are none and no other call of Stager's is heard of.
    virtual void pause(Duration longest) = 0;
    // Ends pause(), if the stager is in it. Any thread.
    virtual void wake() = 0;
  };

  explicit Stager(Listener& listener) : Stager(listener, Patience()) {}
  Stager(Listener& listener, Patience patience);
  // Stops what is under way (aborted), without poison, and returns when all of it is over.
  ~Stager();
  Stager(const Stager&) = delete;
  Stager& operator=(const Stager&) = delete;

  // Whether a call of the driver has not returned for as long as a copy may take. Any thread.
  bool is_stuck(Time time) const {
    const Time began(turn_began_.load());
    return began.value != 0 && time - began > patience_.copy;
  }
  // Any thread, also one that holds the listener's locks.
  void add(Transfer& transfer);
  void placed(Transfer& transfer, std::uint64_t parts);
  void arrived(Transfer& transfer);
  void met(Transfer& transfer);
  // `poison`: a stream may wait for the result, which becomes 0xff before it goes on; that takes until the stream has
  // come to the operation. Also of one that was never added.
  void stop(Transfer& transfer, const Status& why, bool poison);

 private:
  struct Note {
    enum class Kind : std::uint8_t { kAdd, kPlaced, kArrived, kMet, kStop } kind{};
    Transfer* transfer = nullptr;
    std::uint64_t number = 0;  // of the transfer, which may be over, or another one, when the note is read
    Status why = {};
    bool poison = false;
    std::uint64_t parts = 0;
  };

  void tell(Note note);
  void run();
  bool take_notes();
  void take(Note& note);
  void keep(Transfer& transfer);
  bool turn(Time now);
  bool see_copies(Device& device, Device::Direction& direction, Time now);
  void was_copied(const Device::Copy& copy);
  bool see_events(Device& device, Time now);
  bool issue(Device& device, Device::Way way, Time now);
  bool end_stopped(Time now);
  void forget_copies(Transfer& transfer);
  void has_met(Transfer& transfer);
  static bool wants(const Transfer& transfer, Device::Way way);
  static Pieces::Slice next_of_others(Transfer& transfer);
  static Pieces::Slice next_slice(Transfer& transfer, Device::Way way);
  void was_read(Transfer& transfer, const Pieces::Slice& slice);
  void look_if_written(Transfer& transfer);
  void finish(Transfer& transfer, const Status& status);
  void lose(Device& device, const Status& status);
  void fail(const Status& status);

  Listener& listener_;
  const Patience patience_;

  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<Note> notes_;
  bool ending_ = false, rests_ = false;

  std::atomic<std::int64_t> turn_began_{0};  // 0: no call of the driver is under way

  // The thread's.
  std::vector<Transfer*> transfers_;  // by number: an earlier one of a tensor may be added later
  std::vector<Device*> devices_;      // whose transfers there have been
  Time ends_at_{};                    // 0: the stager does not end
  std::vector<Note> taken_;           // empty between calls, as are those below
  std::vector<Transfer*> some_;
  std::vector<Stream_> behind_;

  std::thread thread_;
};

}  // namespace tensorlane::client::cuda
