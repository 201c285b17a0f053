// What makes the kernel ask the network where a peer is (ARP, neighbour discovery) blocks for up to a second each time.
// It is done here, on threads of its own, and not on a lane (law 20).
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/rdma/gid.h"

namespace tensorlane::rdma {

// Peers take turns, one call each. For one address the network is asked once at a time, and again after a pause for as
// long as nobody has answered and somebody wants it. An address that answered last time comes first, then one that is
// new, then one that was silent. Silent ones may keep half of the threads busy, silent and new ones together all but
// one. Silent ones take turns in the order of their last calls, also when their tasks are given up and others come, so
// each gets its turn however many there are. What waits is bounded by the handshakes that are under way.
//
// One thread, the owner's, makes all calls. It never waits for a worker, except in the destructor.
class AddressWorkers {
 public:
  static constexpr std::size_t kThreads = 8;  // at most: one more is started when all others are busy
  static constexpr Duration kPause = milliseconds(50);
  // From so many addresses on, one that nobody waits for is forgotten for each that comes: it is new next time.
  static constexpr std::size_t kMaxRemembered = 4096;

  // What is done for one peer. Made and destroyed on the owner's thread.
  class Task {
   public:
    virtual ~Task() = default;
    // On a worker's thread; the owner does not touch what it uses meanwhile. One call that may block. True: all is
    // done. False: there is more to do, in another turn. kInProgress: nobody has answered yet, it is called again after
    // a pause. Any other error is lasting, and an exception is kUnavailable.
    virtual Result<bool> step() = 0;
  };

  // Errors: kResourceExhausted (descriptors).
  static Result<std::unique_ptr<AddressWorkers>> open(const std::string& where);
  // Waits for the calls that are under way: about a second at most.
  ~AddressWorkers();
  AddressWorkers(const AddressWorkers&) = delete;
  AddressWorkers& operator=(const AddressWorkers&) = delete;

  // Errors: kResourceExhausted (the system gives no thread); the task is destroyed.
  Result<Task*> add(const GidBytes& peer, std::unique_ptr<Task> task);
  // Whether all of the task is done. Errors: the lasting one of its step().
  Result<bool> done(const Task* task) const;
  // Why it is not done yet, where nobody has answered so far: the last kInProgress of its step(), or of another task of
  // the same peer. Ok: nothing is known.
  Status delay(const Task* task) const;
  // Gives back what is done, or has failed for good.
  std::unique_ptr<Task> take(Task* task);
  // Forgets it. It is destroyed now or, while step() is called, by a later serve() or the destructor.
  void give_up(Task* task);
  // Tasks that live here, those that were given up and are still in a call included.
  std::size_t tasks() const;

  // Readable when serve() has something to do.
  int fd() const { return wake_.get(); }
  // The next task that has come to its end, which the owner has not been told of; null when there is none. Destroys
  // what was given up.
  const Task* serve();

 private:
  enum class Standing : std::uint8_t { kAnswers, kNew, kSilent };  // in the order of turns
  struct Entry {
    std::unique_ptr<Task> task;
    GidBytes peer{};
    Status failure;         // the lasting error
    bool finished = false;  // it waits for nothing any more
    bool given_up = false;  // while it is in a call
  };
  struct Peer {
    std::list<Entry*> waiting;  // the first one is next; still there while it is in a call
    std::list<Peer*> place;     // its node of queues_, while it is not there
    bool in_call = false;
    Standing standing = Standing::kNew;
    Status delay;  // kInProgress, where silent
    Time next;     // not before, where silent
  };

  explicit AddressWorkers(handshake::Fd wake) : wake_(std::move(wake)) {}
  Status start_thread();
  void run();
  bool may_call(Standing standing) const;
  // Waits for a peer whose turn it is. Null: the workers stop.
  Peer* next_turn(std::unique_lock<std::mutex>& lock);
  void take_turn(std::unique_lock<std::mutex>& lock, Peer& peer);
  void end_turn(Peer& peer, Status failure, bool more);
  void queue(Peer& peer);
  void forget_one();
  void leave(Entry& entry);

  std::list<Peer*>& line(Standing standing) { return queues_[static_cast<std::size_t>(standing)]; }
  std::size_t& calls(Standing standing) { return calls_[static_cast<std::size_t>(standing)]; }

  const handshake::Fd wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_:
  bool stopping_ = false;
  std::vector<std::thread> threads_;    // the owner's alone
  std::size_t idle_ = 0;                // threads that wait
  std::array<std::size_t, 3> calls_{};  // that are under way, by Standing
  std::map<const Task*, std::unique_ptr<Entry>> entries_;
  std::map<GidBytes, Peer> peers_;          // that somebody waits for, and some of those that were called
  std::array<std::list<Peer*>, 3> queues_;  // by Standing: who waits for a turn; silent ones by `next`
  std::list<Entry*> finished_;              // that the owner has not been told of
};

}  // namespace tensorlane::rdma
