// What the peers of one receiving port may send, all jobs and hosts together: so much that the port is busy and no
// queue in front of it grows. Pure.
//
// In the manner of Homa (Montazeri et al., SIGCOMM 2018, sections 3.1 to 3.3): a sender may begin unasked with a few
// bytes, which say how much more there is; the rest waits for credit. Unlike Homa, whose receivers prefer short
// messages, credit goes to the most urgent class first, inside a class to jobs in turn, and to a job's peers in turn:
// what is short is no more urgent than what is long, and jobs share evenly. No call walks over all streams but add()
// and remove().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "daemon/transport/datagram/packet.h"
#include "daemon/transport/datagram/ring.h"

namespace tensorlane::datagram {

// Who receives a stream. Nothing of Credits may be called from inside.
class CreditHolder {
 public:
  virtual ~CreditHolder() = default;
  // The sender may send more than before, which an acknowledgement has to say.
  virtual void credit_raised() = 0;
};

class Credits {
 public:
  struct Options {
    Bytes window = kib(256);  // on its way to the port at a time: what the path holds, and a little more
    // That a stream may send of which nothing is outstanding, before it has asked: of all peers together no more than
    // the queue of a class at the switch takes.
    Bytes unasked = kib(8);
    Bytes quantum = kib(16);  // given at a time
    // Credit is given to others when no quantum came of it in this time, nor all there was.
    Duration gives_up = milliseconds(5);
  };
  explicit Credits(const Options& options) : options_(options) {}

  using Stream = std::uint32_t;
  // A stream of this class and job. Its numbers are used again. The holder outlives it.
  Stream add(JobId job, Slot slot, CreditHolder& holder);
  void remove(Stream stream);

  // The sender has bytes up to `end`.
  void wants(Stream stream, std::uint64_t end);
  // So many bytes have come, in all.
  void come(Time now, Stream stream, std::uint64_t bytes);
  // How far it may send.
  std::uint64_t credit(Stream stream) const { return streams_[stream].credit; }
  // Gives what there is, and calls the holder of each stream that may send more than before.
  void give(Time now);
  // When give() should be called though nothing has come: credit may be given up then.
  std::optional<Time> deadline() const;

 private:
  static constexpr Stream kNone = ~Stream{0};
  struct State {
    bool used = false;
    Slot slot = 0;
    CreditHolder* holder = nullptr;
    std::uint32_t turn = 0;
    std::uint64_t wanted = 0, come = 0, credit = 0;
    std::uint64_t asked = 0;                // credit beyond `come` that counts as on its way
    std::uint64_t since = 0;                // bytes that have come since `moved`, or since it is silent
    Time moved;                             // when a quantum had come last, or was given while nothing was on its way
    bool silent = false;                    // too little came of what it had: it gets no more until a quantum does
    bool queued = false;                    // in its turn
    bool touched = false;                   // in touched_
    Stream before = kNone, behind = kNone;  // in the list of those with something on its way
  };
  // The streams of one job in one class that want credit, in the order of service.
  struct Turn {
    JobId job;
    Slot slot = 0;
    std::size_t streams = 0;  // 0: the turn is free
    bool queued = false;      // in active_
    Ring<Stream> waiting;
  };
  std::uint32_t turn_of(JobId job, Slot slot);
  void count(Stream stream, std::uint64_t asked);
  void link(Stream stream);
  void unlink(Stream stream);
  void queue(Stream stream);
  void serve(Time now, Slot slot);

  const Options options_;
  std::vector<State> streams_;
  std::vector<Stream> free_;
  std::vector<Turn> turns_;
  std::array<Ring<std::uint32_t>, kSlots> active_;   // by class: turns in which somebody waits, in the order of service
  std::vector<Stream> touched_;                      // something of them came since the last give()
  Stream oldest_ = kNone, newest_ = kNone;           // with something on its way, by when it moved
  std::array<std::uint64_t, kSlots> outstanding_{};  // credit of streams of a class that counts as on its way
};

}  // namespace tensorlane::datagram
