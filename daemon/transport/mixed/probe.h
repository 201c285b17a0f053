// Measures one flow with messages that its peer answers: their round trips, then larger and larger ones. Pure: no
// clock, no flow.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/units.h"
#include "daemon/transport/mixed/choice.h"

namespace tensorlane::mixed {

// What a measurement may cost.
inline constexpr Duration kProbeTime = milliseconds(50);  // planned; one round of the least size takes what it takes
inline constexpr Bytes kProbeBytes = mib(4);
// The round trip is that of the fastest of so many messages of this size: Caramel's small one (section 4.2).
inline constexpr int kPings = 8;
inline constexpr Bytes kPing{64};
// A round is answered when all of it is there. Rounds double from the first size to the last, which then repeats.
inline constexpr Bytes kFirstRound = kib(64);
inline constexpr Bytes kLastRound = mib(1);

// One thread. Both calls answer what to send now, in this order and without waiting; nothing once it is done.
class Probe {
 public:
  struct Message {
    std::uint32_t bytes = 0;  // at most kMaxOperation
    std::uint64_t number = 0;
    bool answered = false;  // the peer shall say when it is there
  };

  // Begins. Call once.
  std::vector<Message> begin(Time now);
  // The peer has answered `number`. An answer that is not waited for changes nothing.
  std::vector<Message> answered(std::uint64_t number, Time now);
  bool done() const { return done_; }
  // From the first round on. Bandwidth is that of the fastest round of the largest size that was reached.
  std::optional<Figures> figures() const { return figures_; }

 private:
  std::vector<Message> ping(Time now);
  std::vector<Message> round(Bytes size, Time now);
  void note(Duration took);

  Time began_, sent_;
  std::uint64_t awaited_ = 0;  // the message whose answer is waited for
  Bytes round_{};              // under way; 0: a ping is
  int pings_ = 0;
  Duration round_trip_{};
  Bytes moved_{}, largest_{};
  std::optional<Figures> figures_;
  bool done_ = false;
};

}  // namespace tensorlane::mixed
