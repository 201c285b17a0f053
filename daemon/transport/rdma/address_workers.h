// What makes the kernel ask the network where a peer is (ARP, neighbour discovery) blocks for up to a second each time.
// It is done here, on threads of its own, and not on a lane (law 20).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/rdma/gid.h"

namespace tensorlane::rdma {

// Peers take turns, one call each. For one address the network is asked once at a time, and again after a pause for as
// long as nobody has answered and somebody wants it; addresses that nobody has answered for may keep all threads busy
// but one, so the others get their turns. What waits is bounded by the handshakes that are under way.
//
// One thread, the owner's, makes all calls. It never waits for a worker, except in the destructor.
class AddressWorkers {
 public:
  static constexpr std::size_t kThreads = 4;  // at most: one more is started when all others are busy
  static constexpr Duration kPause = milliseconds(50);
  // So many silent addresses are remembered when nobody waits for them any more. One more is asked for as a new one.
  static constexpr std::size_t kMaxSilent = 4096;

  // What is done for one peer. Made and destroyed on the owner's thread.
  class Task {
   public:
    virtual ~Task() = default;
    // On a worker's thread; the owner does not touch what it uses meanwhile. One call that may block. True: all is
    // done. False: there is more to do, in another turn. kInProgress: nobody has answered yet, it is called again after
    // a pause. Any other error is lasting.
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
  struct Entry {
    std::unique_ptr<Task> task;
    GidBytes peer{};
    Status status;          // kInProgress: delay(). Else, when finished: the lasting error, or ok
    bool finished = false;  // it waits for nothing any more
    bool given_up = false;  // while it is in a call
  };
  struct Peer {
    std::deque<Entry*> waiting;  // the first one is next; still there while it is in a call
    bool in_call = false;
    bool silent = false;  // nobody has answered the last time, as in silent_
    Time next;            // not before, where silent
  };
  using PeerTurn = std::map<GidBytes, Peer>::iterator;

  explicit AddressWorkers(handshake::Fd wake) : wake_(std::move(wake)) {}
  Status start_thread();
  void run();
  // Waits for a peer whose turn it is. False: the workers stop.
  bool next_turn(std::unique_lock<std::mutex>& lock, PeerTurn& turn);
  void take_turn(std::unique_lock<std::mutex>& lock, PeerTurn turn);
  void end_turn(PeerTurn turn, const Result<bool>& outcome);
  void queue(PeerTurn peer);
  void finish(Entry& entry, Status status);
  void leave(const Entry& entry);

  const handshake::Fd wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_:
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // the owner's alone
  std::size_t idle_ = 0;              // threads that wait
  std::size_t silent_calls_ = 0;      // threads in a call for a silent peer
  std::map<const Task*, std::unique_ptr<Entry>> entries_;
  std::map<GidBytes, Peer> peers_;  // that somebody waits for
  std::set<GidBytes> silent_;
  std::deque<PeerTurn> ready_;    // in the order of their turns, not silent
  std::deque<PeerTurn> resting_;  // the same of silent ones, by `next`
  std::deque<Entry*> finished_;   // that the owner has not been told of
};

}  // namespace tensorlane::rdma
