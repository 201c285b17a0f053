// One client's socket and what the session thread knows of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/ledger.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/session.h"
#include "daemon/session/parse.h"
#include "daemon/session/session.h"
#include "daemon/session/unique_fd.h"

namespace tensorlane::session {

// Monotonic.
Time now();

// What an epoll event of a client carries: the connection's id, and this bit where it is the pidfd that speaks.
inline constexpr std::uint64_t kProcessToken = std::uint64_t{1} << 62;

enum class Phase : std::uint8_t {
  kNew,      // has not said hello
  kJoining,  // control has it
  kOpen,
  kFailed,   // its job has failed; it may read why and go
  kLeaving,  // has said goodbye; control waits for what is in flight
};

// A group of which not all packets have come.
struct PendingGroup {
  Ledger::Charge charge;  // of its tensors
  std::uint32_t request = 0;
  std::string group;
  std::vector<std::uint32_t> ranks;  // of a process set; none: all
  std::vector<protocol::TensorBody> tensors;
  Status error;  // of a tensor so far: the answer when the last packet is here
};

// The session thread's. Plain data and the sending of packets.
struct Connection {
  static constexpr std::uint32_t kMaxRegistrations = 4096;  // asked for and not answered
  static constexpr std::uint32_t kMaxTensors = 65536;       // of one session
  static constexpr std::uint32_t kMaxArenaRequests = 4;

  std::uint64_t id = 0;
  Ledger::Charge pending;  // until hello
  UniqueFd socket;
  UniqueFd process;  // a pidfd: a child may keep the socket open when the client dies
  std::uint32_t uid = 0, pid = 0;
  Time since{};
  Phase phase = Phase::kNew;

  std::shared_ptr<Session> session;  // from hello on
  Hello hello;
  std::uint32_t hello_request = 0, goodbye_request = 0;
  Status failure;  // kFailed: why
  std::optional<PendingGroup> group;
  std::uint32_t registrations = 0, tensors = 0, arena_requests = 0;
  // Of questions that control has not answered, by request; a registration's tensors with it.
  struct Question {
    Question(Ledger::Charge r, Ledger::Charge t) : request(std::move(r)), tensors(std::move(t)) {}
    Ledger::Charge request, tensors;
    bool overdue = false;  // the client has said so
  };
  std::map<std::uint32_t, Question> questions;
  std::optional<Ledger::Charge> status_asked;  // while control has not answered
  std::string status;                          // until its last page was given, or nobody has read on for a while
  Ledger::Charge status_pages;                 // of `status`
  Time status_read{};                          // when its latest page was given
  std::uint64_t arenas_coming = 0;             // bytes of the arena requests under way

  Duration detection{};
  std::uint64_t beats = 0;
  Duration silent{};  // how long `beats` has not moved while we looked

  // Whom what it takes is charged to.
  Owner owner() const { return {uid, hello.job}; }
  // "rank 3 (pid 4711) of job 'x'"
  std::string who() const;
  // A packet, with descriptors. Never waits. Error: Unavailable, when the client does not read or is gone.
  Status send(protocol::MessageType type, std::uint32_t request, std::span<const std::byte> body,
              std::span<const int> fds = {}) const;
  Status send_error(std::uint32_t request, const Status& why) const;
  // The page of `status` at `offset`, which lies in it; after the last one `status` is empty.
  Status send_status_page(std::uint32_t request, std::uint64_t offset);
  static std::uint64_t count_status_pages(std::uint64_t bytes);
  void drop_status();
};

}  // namespace tensorlane::session
